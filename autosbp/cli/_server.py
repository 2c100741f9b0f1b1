"""The same work by a service: what ``--server URL`` does for commands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autosbp.cli._files import NO_SIZES, ModelSizes, read_calibration, read_model, read_plan
from autosbp.cli._run import note
from autosbp.errors import AutosbpError, InputError, ServiceError, TrialError
from autosbp.jsonio import read_file

if TYPE_CHECKING:
    from autosbp.client import Client, Document, Job
    from autosbp.costmodel.calibration import Calibration
    from autosbp.graph.ir import LogicalGraph
    from autosbp.plan import Plan

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
    """The id of a PLAN: a file's, or the one that it is."""
    return plan if is_id(plan) else read_plan(plan).plan_id


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
    plan_id = plan if found is None else found.plan_id
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
    job = client.search(*asked, calibration_id, found.document["options"])
    there = str(client.get_search(wait(client, job)["search_id"])["strategy_id"])
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


def answered(client: Client, job: Job) -> Document:
    """What a question about a strategy was answered with, once it is."""
    found: Document = client.get_analysis(wait(client, job)["analysis_id"])["result"]
    return found


def wait(client: Client, job: Job) -> dict[str, Any]:
    """Follow a job to its end on standard error; what it produced. An interruption cancels it."""
    shown = ""

    def follow(seen: Job) -> None:
        nonlocal shown
        line = f"{seen.kind} {seen.state}: {seen.message}" if seen.message else f"{seen.kind} {seen.state}"
        if line != shown:
            note(line)
            shown = line

    try:
        return dict(client.wait(job, on_progress=follow).result)
    except KeyboardInterrupt:
        client.cancel(job.id)
        raise


def wait_for_trial(client: Client, job: Job, trial_id: str, timeout_s: float | None) -> None:
    """Follow a trial to its end, with its log on standard error. An interruption, or its end not being in time, cancels
    it."""
    from autosbp.client import StillRunningError

    state, num_shown = "", 0

    def show_log() -> None:
        nonlocal num_shown
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

    try:
        client.wait(job, timeout_s, follow)
    except StillRunningError:
        client.cancel(job.id)
        raise TrialError(f"trial {trial_id} has not ended after {timeout_s:g} s; it was cancelled") from None
    except KeyboardInterrupt:
        client.cancel(job.id)
        raise
    except ServiceError:
        raise
    except AutosbpError:
        show_log()
        raise
    show_log()
