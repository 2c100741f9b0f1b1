"""The same work by a service: what ``--server URL`` does for commands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autosbp.cli._files import NO_SIZES, ModelSizes, read_calibration, read_model, read_plan
from autosbp.cli._run import note
from autosbp.cli._submitted import Submit, submitted
from autosbp.errors import AutosbpError, InputError, ServiceError, TrialError
from autosbp.jsonio import read_file

if TYPE_CHECKING:
    from autosbp.client import Client, Document, Job
    from autosbp.costmodel.calibration import Calibration
    from autosbp.graph.ir import LogicalGraph
    from autosbp.plan import Plan

_PATIENCE_S = 120.0
"""How long a service that is restarted in the midst of a trial may be away."""
_ID = re.compile(r"(mod|clu|cal|plan)-[0-9a-f]+")


@contextmanager
def connected(url: str) -> Iterator[Client]:
    """A client of the service at ``url``."""
    from autosbp.client import Client

    with Client(url) as client:
        yield client


def is_id(text: str) -> bool:
    """Whether the text is the id of something that a service stores."""
    return _ID.fullmatch(text) is not None


def id_of(plan: str) -> str:
    """The id that a service has a PLAN under: a file's, or the one that it is."""
    return plan if is_id(plan) else read_plan(plan).stored_id


def post_model(client: Client, model: str, sizes: ModelSizes = NO_SIZES) -> str:
    """Store a MODEL: the service reads its own zoo and captures Hugging Face configs and ONNX files, all else is captured
    here; so is an ONNX file that is too large for it."""
    scheme, _, rest = model.partition(":")
    if is_id(model):
        sizes.refuse("a stored model has its own: leave it out")
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
            note(f"{error}; {rest} is captured here")
    return client.post_model(read_model(model, sizes).to_dict())


def post_cluster(client: Client, cluster: str) -> str:
    """Store a CLUSTER, preset or file."""
    from autosbp.cluster import load_cluster

    return cluster if is_id(cluster) else client.post_cluster(load_cluster(cluster))


def post_calibration(client: Client, calibration: str | None) -> str | None:
    """Store a calibration file; an id is taken as it is."""
    if calibration is None or is_id(calibration):
        return calibration
    found = read_calibration(calibration)
    return None if found is None else client.post_calibration(found.to_dict())


def stored_strategy(client: Client, plan: str, model: str | None, sizes: ModelSizes) -> tuple[str, Document]:
    """The id of a PLAN (a file, or an id) in the service, and its document.

    A plan that the service does not have is searched there again, with the same question. That gives the same plan,
    unless the release is another or a time limit has ended the search. ``model`` is a MODEL or the file of its graph.
    """
    from autosbp.client import NotFoundError

    if is_id(plan) and model is not None:
        raise InputError("model", model, f"the service knows the graph of {plan}: leave it out")
    found = None if is_id(plan) else read_plan(plan)
    plan_id = plan if found is None else found.stored_id
    with suppress(NotFoundError):
        return plan_id, client.get_strategy(plan_id)
    if found is None or model is None:
        limit = "a strategy that the service has is expected" + (
            "" if found is None else "; else give --model or --graph"
        )
        raise InputError("plan", plan_id, limit)
    note(f"the service does not have {plan_id}: it searches for an answer to the same question")
    asked = (post_model(client, model, sizes), client.post_cluster(found.cluster))
    calibration_id = found.document["provenance"].get("calibration_id")
    options = found.document["options"]
    search_id = wait(client, lambda key: client.search(*asked, calibration_id, options, idempotency_key=key))[
        "search_id"
    ]
    there = str(client.get_search(search_id)["strategy_id"])
    if there != plan_id:
        raise InputError(
            "plan", plan_id, f"the service answers its question with {there}; try that, or plan with --server"
        )
    return plan_id, client.get_strategy(plan_id)


def fetched(client: Client, document: Document) -> tuple[Plan, LogicalGraph, Calibration | None]:
    """A stored strategy's plan, with the graph and the calibration that it was found with."""
    from autosbp import api
    from autosbp.costmodel.calibration import Calibration
    from autosbp.plan import Plan

    provenance = document["provenance"]
    graph = api.load_graph(client.get_graph(f"mod-{provenance['graph_hash']}"))
    known = provenance.get("calibration_id")
    costs = None if known is None else Calibration.from_dict(client.get_calibration(known))
    return Plan.from_dict(document), graph, costs


def answered(client: Client, submit: Submit) -> Document:
    """What a question about a strategy was answered with, once it is."""
    analysis_id = wait(client, submit)["analysis_id"]
    found: Document = client.get_analysis(analysis_id)["result"] or {}
    return found


def wait(client: Client, submit: Submit) -> dict[str, Any]:
    """Queue a job and follow it to its end on standard error; what it produced. Whatever ends the wait, cancels it."""
    shown = ""

    def follow(seen: Job) -> None:
        nonlocal shown
        line = f"{seen.kind} {seen.state}: {seen.message}" if seen.message else f"{seen.kind} {seen.state}"
        if line != shown:
            note(line)
            shown = line

    with submitted(client, submit) as job:
        return dict(client.wait(job, on_progress=follow).result)


def wait_for_trial(client: Client, submit: Submit, timeout_s: float | None) -> str:
    """Queue a trial and follow it to its end, with its log on standard error; its id. Whatever ends the wait, and its end not
    being in time, cancels it."""
    from autosbp.client import StillRunningError, UnreachableError

    state, num_shown = "", 0

    def show_log() -> None:
        nonlocal num_shown
        with suppress(UnreachableError):  # what is not shown now is shown later, and no reason to give up
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

    with submitted(client, submit) as job:
        trial_id = trial_of(job)
        try:
            client.wait(job, timeout_s, follow, patience_s=_PATIENCE_S)
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
