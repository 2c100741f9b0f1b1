"""The tasks that the worker process runs: JSON in, JSON out, no database."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from math import isfinite
from pathlib import Path
from typing import Any

from autosbp import api
from autosbp.answers import what_if_document, why_document
from autosbp.cluster import Cluster
from autosbp.costmodel.calibration import Calibration
from autosbp.errors import CalibrationError, TrialError
from autosbp.lessons import experience_of
from calibration import Progress
from calibration import calibrate as measure
from service.jobs._base import CancelledError, Document, TaskContext
from service.launchers.attempt import launched

_MOST_POINTS = 200


def capture(inputs: Document, context: TaskContext) -> Document:
    """Capture the model of a Hugging Face configuration or of an ONNX file as a graph document."""
    if "onnx" in inputs:
        context.progress(None, "capturing an ONNX model")
        graph = api.capture_onnx(inputs["onnx"], inputs["name"])
    else:
        context.progress(None, "capturing a Hugging Face configuration")
        graph = api.capture_hf_config(inputs["hf_config"], inputs["seq_len"], inputs.get("image_size"))
    _stop_if_cancelled(context)
    return graph.to_dict()


def search(inputs: Document, context: TaskContext) -> Document:
    """Search the best strategy, or the front of step time against memory; the plans' documents, fastest first, and the
    ``curve`` of the search: (seconds since its begin, best step time so far) wherever that fell."""
    cluster = Cluster.from_dict(inputs["cluster"])
    calibration = inputs["calibration"]
    context.progress(None, "building the search problem")
    asked = (
        api.load_graph(inputs["graph"]),
        cluster,
        Calibration.from_dict(calibration) if calibration is not None else None,
        api.PlanOptions.from_dict(inputs["options"]),
    )

    began_s, curve = time.monotonic(), list[list[float]]()

    def progress(stage: str, best_s: float) -> bool:
        if isfinite(best_s) and len(curve) < _MOST_POINTS and (not curve or best_s < curve[-1][1]):
            curve.append([time.monotonic() - began_s, best_s])
        # What has no best of its own, or a front's plans of less memory, leaves the best so far.
        return context.progress(None, stage, best_step_time_s=curve[-1][1] if curve else best_s)

    num_points, given = inputs.get("num_points"), inputs.get("start")
    start = None if given is None else api.Strategy.from_dict(given)
    if num_points is None:
        plans: Sequence[api.Plan] = [api.make_plan(*asked, progress=progress, start=start)]
    else:
        plans = api.pareto_front(*asked, num_points=num_points, progress=progress, start=start)
    _stop_if_cancelled(context)
    if num_points is None:
        curve.append([time.monotonic() - began_s, plans[0].document["step_time_s"]])
    return {"plans": [plan.to_dict() for plan in plans], "curve": curve}


def why(inputs: Document, context: TaskContext) -> Document:
    """What other layouts of an op would cost; ``autosbp.answers.why_document``."""
    plan, graph, calibration = _analysed(inputs)
    options = inputs["options"]
    context.progress(None, f"costing other layouts of {options['op']}")
    found = api.why(graph, plan, options["op"], calibration, most=options["most"])
    _stop_if_cancelled(context)
    return why_document(plan, found, _step_s(plan, graph, calibration))


def what_if(inputs: Document, context: TaskContext) -> Document:
    """What better hardware would buy; ``autosbp.answers.what_if_document``."""
    plan, graph, calibration = _analysed(inputs)
    factor = inputs["options"]["factor"]

    def report(name: str) -> None:
        _stop_if_cancelled(context)
        context.progress(None, f"searching with {factor:g} x {name}")

    found = api.what_if(graph, plan, calibration, factor=factor, report=report)
    _stop_if_cancelled(context)
    return what_if_document(plan, found, _step_s(plan, graph, calibration), calibrated=calibration is not None)


def _analysed(inputs: Document) -> tuple[api.Plan, api.LogicalGraph, Calibration | None]:
    calibration = inputs["calibration"]
    costs = None if calibration is None else Calibration.from_dict(calibration)
    return api.Plan.from_dict(inputs["plan"]), api.load_graph(inputs["graph"]), costs


def _step_s(plan: api.Plan, graph: api.LogicalGraph, calibration: Calibration | None) -> float:
    return api.predict_costs(graph, plan.strategy, plan.cluster, calibration).step_time_s


def calibrate(inputs: Document, context: TaskContext) -> Document:
    """Measure a cluster, and the ops that some models would run on it; the calibration's document."""
    cluster = Cluster.from_dict(inputs["cluster"])
    options = api.PlanOptions.from_dict(inputs["options"])
    keys = [api.op_keys(api.load_graph(document), cluster, options) for document in inputs["graphs"]]
    in_turn = dict.fromkeys(key for rank in zip_longest(*keys) for key in rank if key is not None)
    context.progress(None, "calibrating")
    ways: dict[str, Any] = {"workdir": _folder(inputs["workdir"]), "cancelled": context.cancelled}
    if inputs.get("launching") is not None:
        ways = {"cancelled": _unless_orphaned(context), "queued": True, **launched(inputs, cluster, _teller(context))}
    with _kept_private(ways["workdir"]):
        found = measure(
            cluster,
            op_keys=list(in_turn),
            progress=lambda step: _follow(step, context),
            timeout_s=inputs["timeout_s"],
            **inputs["effort"],
            **ways,
        )
    _stop_if_cancelled(context)
    return found.to_dict()


def _follow(step: Progress, context: TaskContext) -> None:
    context.progress(step.done / max(step.total, 1), step.name)


def trial(inputs: Document, context: TaskContext) -> Document:
    """Run a plan and measure it; the trial's report, with what it teaches the plan's calibration as ``experience``. Its log
    is appended to the file ``inputs["log"]``."""
    graph = api.load_graph(inputs["graph"])
    plan = api.Plan.from_dict(inputs["plan"])
    if inputs["baseline"] is not None:
        plan = plan.with_baseline(inputs["baseline"])
    context.progress(None, "starting ranks")
    workdir, log = _folder(inputs["workdir"]), Path(inputs["log"])
    ways: dict[str, Any] = {"workdir": workdir, "cancelled": context.cancelled}
    if inputs.get("launching") is not None:
        log.unlink(missing_ok=True)  # the log of ranks that are found again is read from its beginning
        ways |= {"cancelled": _unless_orphaned(context), **launched(inputs, plan.cluster, _teller(context))}
    ways["log"] = _appender(log, context)
    with _kept_private(ways["workdir"]):
        found = api.run_trial(plan, graph, **inputs["options"], timeout_s=inputs["timeout_s"], **ways)
    result = {**found, "plan_id": plan.stored_id}
    _stop_if_cancelled(context)
    calibration = inputs["calibration"]
    # What was measured of other collectives than those charged is no lesson.
    if calibration is None or not result["collectives_match"]:
        return result
    return {**result, "experience": experience_of(plan, graph, Calibration.from_dict(calibration), result).to_dict()}


def _appender(path: Path, context: TaskContext) -> Callable[[str], None]:
    def log(line: str) -> None:
        with path.open("a", encoding="utf-8", errors="replace") as file:
            file.write(line.rstrip("\n") + "\n")
        context.progress(None, line.strip()[:200])

    return log


def _teller(context: TaskContext) -> Callable[[str], None]:
    def told(words: str) -> None:
        context.progress(None, words)

    return told


def _unless_orphaned(context: TaskContext) -> Callable[[], bool]:
    """Whether somebody cancelled the job. Raises where the task is told to stop because the service is gone: its successor
    finds the ranks again, so that they are not ended."""

    def cancelled() -> bool:
        if not context.cancelled():
            return False
        if context.orphaned():
            raise CancelledError
        return True

    return cancelled


@contextmanager
def _kept_private(folder: Path) -> Iterator[None]:
    """Errors name files of a folder by their names, as the job's artifacts are: where the service keeps them is no caller's
    business."""
    try:
        yield
    except (CalibrationError, TrialError) as error:
        told = str(error).replace(f"{folder.resolve()}/", "").replace(f"{folder}/", "")
        raise type(error)(told) from error


def _folder(path: str) -> Path:
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _stop_if_cancelled(context: TaskContext) -> None:
    if context.cancelled():
        raise CancelledError
