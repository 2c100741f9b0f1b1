"""The tasks that the worker process runs: JSON in, JSON out, no database."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from math import isfinite
from pathlib import Path
from typing import Any

from autosbp import api
from autosbp.calibration import Progress
from autosbp.calibration import calibrate as measure
from autosbp.cluster.spec import Cluster
from autosbp.costmodel.calibration import Calibration
from autosbp.costmodel.trial_feedback import trial_residual_of_report
from autosbp.errors import CalibrationError, TrialError
from autosbp.graph.precision import planned_graph
from autosbp.launch.local import run_ranks
from autosbp.report.analysis_json import what_if_document, why_document
from autosbp.sandbox import Sandbox
from autosbp.sandbox.regular_files import remove_irregular
from autosbp.service.jobs._base import CancelledError, Document, TaskContext
from autosbp.service.launchers.launch_arguments import launch_arguments
from autosbp.tuning.options import TuneOptions
from autosbp.tuning.summary import tuning_summary
from autosbp.tuning.tuner import TuningState, fastest_plans

_MAX_CURVE_POINTS = 200
_TUNED_PLANS = 5
"""Strategies that a search by trials stores, fastest first."""


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
    """Search the best strategy, or the Pareto front of step time and memory.

    Returns the documents of the ``plans``, fastest first, and the ``curve`` of the search: (seconds since its begin,
    best step time in seconds) at each improvement.
    """
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
        if isfinite(best_s) and len(curve) < _MAX_CURVE_POINTS and (not curve or best_s < curve[-1][1]):
            curve.append([time.monotonic() - began_s, best_s])
        # Stages without a best of their own, and a front's plans of less memory, keep the best so far.
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
    """Cost other layouts of an op; see ``autosbp.report.analysis_json.why_document``."""
    plan, graph, calibration = _plan_inputs(inputs)
    options = inputs["options"]
    context.progress(None, f"costing other layouts of {options['op']}")
    found = api.why(graph, plan, options["op"], calibration, most=options["most"])
    _stop_if_cancelled(context)
    return why_document(plan, found, _step_s(plan, graph, calibration))


def what_if(inputs: Document, context: TaskContext) -> Document:
    """Estimate the gain from better hardware; see ``autosbp.report.analysis_json.what_if_document``."""
    plan, graph, calibration = _plan_inputs(inputs)
    factor = inputs["options"]["factor"]

    def report(name: str) -> None:
        _stop_if_cancelled(context)
        context.progress(None, f"searching with {factor:g} x {name}")

    found = api.what_if(graph, plan, calibration, factor=factor, report=report)
    _stop_if_cancelled(context)
    return what_if_document(plan, found, _step_s(plan, graph, calibration), calibrated=calibration is not None)


def _plan_inputs(inputs: Document) -> tuple[api.Plan, api.LogicalGraph, Calibration | None]:
    calibration = inputs["calibration"]
    costs = None if calibration is None else Calibration.from_dict(calibration)
    plan = api.Plan.from_dict(inputs["plan"])
    return plan, planned_graph(api.load_graph(inputs["graph"]), plan.document), costs


def _step_s(plan: api.Plan, graph: api.LogicalGraph, calibration: Calibration | None) -> float:
    return api.predict_costs(graph, plan.strategy, plan.cluster, calibration).step_time_s


def calibrate(inputs: Document, context: TaskContext) -> Document:
    """Measure a cluster, and the ops that some models would run on it; return the calibration's document."""
    cluster = Cluster.from_dict(inputs["cluster"])
    options = api.PlanOptions.from_dict(inputs["options"])
    keys = [api.op_keys(api.load_graph(document), cluster, options) for document in inputs["graphs"]]
    in_turn = dict.fromkeys(key for rank in zip_longest(*keys) for key in rank if key is not None)
    context.progress(None, "calibrating")
    ways = _local_launch_arguments(inputs, cluster, context)
    if inputs.get("launching") is not None:
        ways = {
            "cancelled": _cancel_check(context),
            "queued": True,
            **launch_arguments(inputs, cluster, _state_reporter(context)),
        }
    with _relative_paths_in_errors(ways["workdir"]):
        found = measure(
            cluster,
            op_keys=list(in_turn),
            progress=lambda step: _report_progress(step, context),
            timeout_s=inputs["timeout_s"],
            **inputs["effort"],
            **ways,
        )
    _stop_if_cancelled(context)
    return found.to_dict()


def _report_progress(step: Progress, context: TaskContext) -> None:
    context.progress(step.done / max(step.total, 1), step.name)


def trial(inputs: Document, context: TaskContext) -> Document:
    """Run and measure a plan; return the report, with data to correct the plan's calibration as ``experience``."""
    plan = api.Plan.from_dict(inputs["plan"])
    graph = planned_graph(api.load_graph(inputs["graph"]), plan.document)
    if inputs["baseline"] is not None:
        plan = plan.with_baseline(inputs["baseline"])
    context.progress(None, "starting ranks")
    ways = _local_launch_arguments(inputs, plan.cluster, context)
    if inputs.get("launching") is not None:
        ways |= {
            "cancelled": _cancel_check(context),
            **launch_arguments(inputs, plan.cluster, _state_reporter(context)),
        }
    ways["log"] = lambda line: context.progress(None, line.strip()[:200])
    with _relative_paths_in_errors(ways["workdir"]):
        found = api.run_trial(plan, graph, **inputs["options"], timeout_s=inputs["timeout_s"], **ways)
    result = {**found, "plan_id": plan.stored_id}
    _stop_if_cancelled(context)
    calibration = inputs["calibration"]
    # Measurements with other collectives than those in the cost model cannot correct the calibration.
    if calibration is None or not result["collectives_match"]:
        return result
    return {
        **result,
        "experience": trial_residual_of_report(plan, graph, Calibration.from_dict(calibration), result).to_dict(),
    }


def tune(inputs: Document, context: TaskContext) -> Document:
    """Search by trials; an interrupted attempt's trials count. Returns the fastest ``plans`` and the ``summary``."""
    cluster, calibration = Cluster.from_dict(inputs["cluster"]), inputs["calibration"]
    ways = _local_launch_arguments(inputs, cluster, context)
    context.progress(None, "planning")

    def progress(state: TuningState) -> bool:
        figures = {"best_step_time_s": state.best_s, "num_trials": float(state.num_trials)}
        return context.progress(
            state.num_trials / state.budget, f"trial {state.num_trials} of {state.budget}",
            **{name: value for name, value in figures.items() if isfinite(value)},
        )  # fmt: skip

    with _relative_paths_in_errors(ways["workdir"]):
        found = api.tune(
            api.load_graph(inputs["graph"]), cluster, ways["workdir"],
            None if calibration is None else Calibration.from_dict(calibration),
            api.PlanOptions.from_dict(inputs["options"]), TuneOptions.from_dict(inputs["tuning"]),
            launch=ways["launch"], cancelled=ways["cancelled"], progress=progress,
        )  # fmt: skip
    _stop_if_cancelled(context)
    if found.best is None:
        raise TrialError(f"all {len(found.trials)} trials failed; the last one: {found.trials[-1].error}")
    plans = [plan.to_dict() for plan in fastest_plans(found, _TUNED_PLANS)]
    return {"plans": plans, "summary": tuning_summary(found.trials, found.stopped)}


def _local_launch_arguments(inputs: Document, cluster: Cluster, context: TaskContext) -> dict[str, Any]:
    """Arguments that start ranks as confined children of this process."""
    # Jobs queued by earlier releases have no sandbox.
    sandbox = replace(Sandbox.from_dict(inputs.get("sandbox", {})), gpus=cluster.device.kind == "cuda")
    launch = partial(run_ranks, sandbox=sandbox)
    return {"workdir": _folder(inputs["workdir"]), "cancelled": context.cancelled, "launch": launch}


def _state_reporter(context: TaskContext) -> Callable[[str], None]:
    def told(words: str) -> None:
        context.progress(None, words)

    return told


def _cancel_check(context: TaskContext) -> Callable[[], bool]:
    """Build a check for cancellation by a person.

    It raises ``CancelledError`` if the service is gone: the service's successor finds the running ranks, so they must
    not be ended.
    """

    def cancelled() -> bool:
        if not context.cancelled():
            return False
        if context.orphaned():
            raise CancelledError
        return True

    return cancelled


@contextmanager
def _relative_paths_in_errors(folder: Path) -> Iterator[None]:
    """Shorten file paths in errors to names relative to the job's folder, as its artifacts are named.

    Callers must not learn where the service keeps files.
    """
    try:
        yield
    except (CalibrationError, TrialError) as error:
        told = str(error).replace(f"{folder.resolve()}/", "").replace(f"{folder}/", "")
        raise type(error)(told) from error


def _folder(path: str) -> Path:
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    remove_irregular(folder)  # left by an attempt that was killed
    return folder


def _stop_if_cancelled(context: TaskContext) -> None:
    if context.cancelled():
        raise CancelledError
