"""The tasks that the worker process runs: JSON in, JSON out, no database."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from autosbp import api
from autosbp.cluster import Cluster
from autosbp.costmodel.calibration import Calibration
from autosbp.lessons import experience_of
from calibration import Progress
from calibration import calibrate as measure
from service.jobs._base import CancelledError, Document, TaskContext


def capture(inputs: Document, context: TaskContext) -> Document:
    """Capture the model of a Hugging Face configuration as a graph document."""
    context.progress(None, "capturing a Hugging Face configuration")
    graph = api.capture_hf_config(inputs["hf_config"], inputs["seq_len"], inputs.get("image_size"))
    _stop_if_cancelled(context)
    return graph.to_dict()


def search(inputs: Document, context: TaskContext) -> Document:
    """Search the best strategy; the plan's document."""
    cluster = Cluster.from_dict(inputs["cluster"])
    calibration = inputs["calibration"]
    context.progress(None, "building the search problem")
    plan = api.make_plan(
        api.load_graph(inputs["graph"]),
        cluster,
        Calibration.from_dict(calibration) if calibration is not None else None,
        api.PlanOptions.from_dict(inputs["options"]),
        progress=lambda stage, best_s: context.progress(None, stage, best_step_time_s=best_s),
    )
    _stop_if_cancelled(context)
    return plan.to_dict()


def calibrate(inputs: Document, context: TaskContext) -> Document:
    """Measure a cluster, and the ops that some models would run on it; the calibration's document."""
    cluster = Cluster.from_dict(inputs["cluster"])
    options = api.PlanOptions.from_dict(inputs["options"])
    keys = {key for document in inputs["graphs"] for key in api.op_keys(api.load_graph(document), cluster, options)}
    context.progress(None, "calibrating")
    found = measure(
        cluster,
        op_keys=sorted(keys),
        progress=lambda step: _follow(step, context),
        workdir=_folder(inputs["workdir"]),
        timeout_s=inputs["timeout_s"],
        **inputs["effort"],
    )
    _stop_if_cancelled(context)
    return found.to_dict()


def _follow(step: Progress, context: TaskContext) -> None:
    if not context.progress(step.done / max(step.total, 1), step.name):
        raise CancelledError


def trial(inputs: Document, context: TaskContext) -> Document:
    """Run a plan and measure it; the trial's report, with what it teaches the plan's calibration as ``experience``. Its log
    is appended to the file ``inputs["log"]``."""
    graph = api.load_graph(inputs["graph"])
    plan = api.Plan.from_dict(inputs["plan"])
    if inputs["baseline"] is not None:
        plan = plan.with_baseline(inputs["baseline"])
    context.progress(None, "starting ranks")
    workdir = _folder(inputs["workdir"])
    result = api.run_trial(
        plan,
        graph,
        **inputs["options"],
        timeout_s=inputs["timeout_s"],
        workdir=workdir,
        log=_appender(Path(inputs["log"]), context),
        cancelled=context.cancelled,
    )
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


def _folder(path: str) -> Path:
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _stop_if_cancelled(context: TaskContext) -> None:
    if context.cancelled():
        raise CancelledError
