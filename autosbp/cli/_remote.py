"""``--server URL``: run a command's work in a service."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autosbp.cli._exit_codes import note
from autosbp.cli._files import NO_SIZES, ModelSizes, read_calibration, read_model, read_plan
from autosbp.cli._job_cancellation import Submit, cancel_on_exit
from autosbp.cli._progress import JobProgress, WallTime
from autosbp.errors import AutosbpError, InputError, ServiceError, TrialError
from autosbp.utils.json_io import read_file

if TYPE_CHECKING:
    from autosbp.client import Client, Document, Job
    from autosbp.costmodel.calibration import Calibration
    from autosbp.graph.ir import LogicalGraph
    from autosbp.plan.plan import Plan

_MAX_UNREACHABLE_S = 120.0
"""Seconds that the service may be unreachable during a trial, for example while it restarts."""
_ID = re.compile(r"(mod|clu|cal|plan)-[0-9a-f]+")


@contextmanager
def open_client(url: str) -> Iterator[Client]:
    """Open a client of the service at ``url``."""
    from autosbp.client import Client

    with Client(url) as client:
        yield client


def is_id(text: str) -> bool:
    """Whether the text is the id of an object in a service."""
    return _ID.fullmatch(text) is not None


def id_of(plan: str) -> str:
    """The id of a PLAN in a service: the text itself if it is an id, else the id of the plan in the file."""
    return plan if is_id(plan) else read_plan(plan).stored_id


def post_model(client: Client, model: str, sizes: ModelSizes = NO_SIZES) -> str:
    """Store a MODEL and return its id.

    The service builds its own zoo models and captures Hugging Face configs and ONNX files. All other models are
    captured locally, and so are ONNX files too large for the service.
    """
    scheme, _, rest = model.partition(":")
    if is_id(model):
        sizes.refuse("a stored model has its own; omit it")
        return model
    if scheme == "hf":
        return client.post_model(hf_config=read_file(Path(rest)), seq_len=sizes.seq_len, image_size=sizes.image_size)
    if scheme == "zoo" and sizes == NO_SIZES:
        return client.post_model(zoo=rest)
    if scheme == "onnx" and sizes == NO_SIZES:
        from autosbp.client import TooLargeError

        try:
            return client.post_model(onnx=Path(rest))
        except TooLargeError as error:
            note(f"{error}; {rest} is captured on this machine")
    return client.post_model(read_model(model, sizes).to_dict())


def post_cluster(client: Client, cluster: str) -> str:
    """Store a CLUSTER (preset or file) and return its id."""
    from autosbp.cluster.spec import load_cluster

    return cluster if is_id(cluster) else client.post_cluster(load_cluster(cluster))


def post_calibration(client: Client, calibration: str | None) -> str | None:
    """Store a calibration file and return its id; an id is returned unchanged."""
    if calibration is None or is_id(calibration):
        return calibration
    found = read_calibration(calibration)
    return None if found is None else client.post_calibration(found.to_dict())


def find_or_search_strategy(client: Client, plan: str, model: str | None, sizes: ModelSizes) -> tuple[str, Document]:
    """The id and document of a PLAN (file or id) in the service.

    If the service lacks the plan, it repeats the search with the same inputs and options. The result is the same plan
    unless the release differs or a time limit ended the search.

    Args:
        model: MODEL or graph file of the plan; needed for the repeated search.

    Raises:
        InputError: the service lacks the plan and cannot reproduce it.
    """
    from autosbp.client import NotFoundError

    if is_id(plan) and model is not None:
        raise InputError("model", model, f"the service has the graph of {plan}; omit it")
    found = None if is_id(plan) else read_plan(plan)
    plan_id = plan if found is None else found.stored_id
    with suppress(NotFoundError):
        return plan_id, client.get_strategy(plan_id)
    if found is None or model is None:
        limit = "the service has no such strategy" + (
            "" if found is None else "; alternatively give --model or --graph"
        )
        raise InputError("plan", plan_id, limit)
    note(f"the service does not have {plan_id}; repeating its search there")
    asked = (post_model(client, model, sizes), client.post_cluster(found.document["cluster"]))
    calibration_id = found.document["provenance"].get("calibration_id")
    options = {"precision": None, **found.document["options"]}
    search_id = wait(client, lambda key: client.search(*asked, calibration_id, options, idempotency_key=key))[
        "search_id"
    ]
    there = str(client.get_search(search_id)["strategy_id"])
    if there != plan_id:
        raise InputError(
            "plan", plan_id, f"repeating the search gave {there}; use that strategy, or plan with --server"
        )
    return plan_id, client.get_strategy(plan_id)


def fetch_plan(client: Client, document: Document) -> tuple[Plan, LogicalGraph, Calibration | None]:
    """A stored strategy as a plan, with the graph, in its precision, and the calibration that its search used."""
    from autosbp import api
    from autosbp.costmodel.calibration import Calibration
    from autosbp.graph.precision import planned_graph
    from autosbp.plan.plan import Plan

    provenance = document["provenance"]
    model = next(client.models(graph_hash=provenance["graph_hash"], limit=1), None)
    if model is None:
        raise InputError("plan", document["plan_id"], "the service does not have the plan's model")
    graph = planned_graph(api.load_graph(client.get_graph(model["id"])), document)
    known = provenance.get("calibration_id")
    costs = None if known is None else Calibration.from_dict(client.get_calibration(known))
    return Plan.from_dict(document), graph, costs


def wait_for_analysis(client: Client, submit: Submit) -> Document:
    """Submit a question about a strategy and wait for its answer."""
    analysis_id = wait(client, submit)["analysis_id"]
    found: Document = client.get_analysis(analysis_id)["result"] or {}
    return found


def wait(client: Client, submit: Submit, times: WallTime | None = None) -> dict[str, Any]:
    """Submit a job, print its progress on standard error and return its result; cancel it if the wait ends early.

    ``times`` counts the time in the queue and at work.
    """
    progress, is_queued = JobProgress(), True

    def follow(seen: Job) -> None:
        nonlocal is_queued
        progress.report(seen)
        if times is not None and seen.state != "queued":
            times.end("waiting in the queue" if is_queued else "searching")
            is_queued = False

    with cancel_on_exit(client, submit) as job:
        return dict(client.wait(job, on_progress=follow).result)


def wait_for_trial(client: Client, submit: Submit, timeout_s: float | None) -> str:
    """Submit a trial, print its log on standard error and return its id when it ends.

    The trial is cancelled if the wait ends early or exceeds ``timeout_s``.
    """
    from autosbp.client import StillRunningError, UnreachableError

    state, num_shown = "", 0

    def show_log() -> None:
        nonlocal num_shown
        with suppress(UnreachableError):  # lines missed now are printed later
            lines = client.trial_log(trial_id).splitlines()
            for line in lines[num_shown:]:
                note(line)
            num_shown = max(num_shown, len(lines))

    def follow(seen: Job) -> None:
        nonlocal state
        if seen.state != state:
            state = seen.state
            note(f"trial {trial_id} {state}")
        show_log()

    with cancel_on_exit(client, submit) as job:
        trial_id = trial_of(job)
        try:
            client.wait(job, timeout_s, follow, patience_s=_MAX_UNREACHABLE_S)
        except StillRunningError:
            raise TrialError(f"trial {trial_id} has not ended after {timeout_s:g} s") from None
        except ServiceError:
            raise
        except AutosbpError:
            show_log()
            raise
        show_log()
    return trial_id


def trial_of(job: Job) -> str:
    """The id of the trial that a job runs."""
    return str(job.resource).rpartition("/")[2]
