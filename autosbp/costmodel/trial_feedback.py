"""Calibration corrections from trials stored by ``autosbp trial --workdir`` or by the service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autosbp.cluster.spec import Cluster
from autosbp.costmodel.calibration import Calibration, Correction
from autosbp.costmodel.calibration_correction import TrialResidual, fit_correction
from autosbp.costmodel.strategy_cost import predict_costs
from autosbp.errors import InputError
from autosbp.graph.ir import LogicalGraph
from autosbp.graph.precision import planned_graph
from autosbp.graph_sources import load_graph
from autosbp.plan.plan import Plan, Strategy
from autosbp.utils.json_io import Fields, digest, loads, read_nested

REQUEST, RESULT = "request.json", "result.json"
_KEPT = f"expected the --workdir folder of a successful autosbp trial, with {REQUEST} and {RESULT}"


@dataclass(frozen=True, slots=True)
class TrialPredictions:
    """One trial: its plan's predicted step before and after the correction, and its measured step, in seconds."""

    trial: str
    plan_id: str
    before_s: float
    after_s: float
    measured_s: float


@dataclass(frozen=True, slots=True)
class CorrectedCalibration:
    """A corrected calibration, and the trials that it was fitted to."""

    calibration: Calibration
    lessons: tuple[TrialPredictions, ...]


@dataclass(frozen=True, slots=True)
class _Trial:
    name: str
    plan: Plan
    graph: LogicalGraph
    experience: TrialResidual
    result_id: str

    def predicted_s(self, calibration: Calibration) -> float:
        return predict_costs(self.graph, self.plan.strategy, self.plan.cluster, calibration).step_time_s


def learn_from_trials(calibration: Calibration, folders: Sequence[Path]) -> CorrectedCalibration:
    """Return the calibration with one more correction, fitted only to the trials in ``folders``.

    Raises:
        InputError: no folder, or one or its copy given twice; a trial that did not succeed, was cut off, is of another
            cluster than the calibration, or issued other collectives than its plan was charged for.
    """
    resolved = [folder.resolve() for folder in folders]
    for at, folder in enumerate(resolved):
        if folder in resolved[:at]:
            raise InputError(f"trial[{at}]", str(folders[at]), "duplicate folder: each trial counts once")
    trials = [_read(calibration, folder, f"trial[{at}]") for at, folder in enumerate(folders)]
    for at, trial in enumerate(trials):
        same = next((other.name for other in trials[:at] if other.result_id == trial.result_id), None)
        if same is not None:
            limit = f"a copy of the trial in {same}: each trial counts once"
            raise InputError(f"trial[{at}]", trial.name, limit)
    taught = fit_correction(calibration, [trial.experience for trial in trials])
    lessons = (
        TrialPredictions(
            trial.name,
            trial.plan.plan_id,
            trial.predicted_s(calibration),
            trial.predicted_s(taught),
            trial.experience.measured_s,
        )
        for trial in trials
    )
    return CorrectedCalibration(taught, tuple(lessons))


def trial_residual_of_report(
    plan: Plan, graph: LogicalGraph, calibration: Calibration, result: Mapping[str, Any], path: str = "result"
) -> TrialResidual:
    """Residual of one trial's report under ``calibration``, ignoring its earlier corrections.

    Raises:
        InputError: names the field below ``path``: a report of another plan, without a step time, or with other
            collectives than those charged; or a plan of another cluster.
    """
    cluster = plan.cluster
    if cluster.levels_key != calibration.cluster.levels_key:
        limit = f"expected a trial on {calibration.cluster.name}, with levels {_levels(calibration.cluster.levels_key)}"
        raise InputError(f"{path}.cluster", f"{cluster.name}: {_levels(cluster.levels_key)}", limit)
    fields = Fields(result, path, result)
    if fields.raw("plan_id") not in (plan.plan_id, plan.stored_id):
        raise InputError(fields.at("plan_id"), fields.raw("plan_id"), f"expected {plan.plan_id}, the trial's plan")
    if not fields.boolean("collectives_match"):
        limit = "expected true: the trial ran other collectives than the plan's costs assume"
        raise InputError(fields.at("collectives_match"), False, limit)
    times = fields.mapping("step_time_s")
    measured_s = Fields(times, fields.at("step_time_s"), times).positive("median")
    return trial_residual(graph, plan.strategy, cluster, calibration, measured_s)


def trial_residual(
    graph: LogicalGraph, strategy: Strategy, cluster: Cluster, calibration: Calibration, measured_s: float
) -> TrialResidual:
    """Residual of a strategy's measured step under ``calibration``, ignoring its earlier corrections."""

    def predict(correction: Correction) -> float:
        corrected = replace(calibration, corrections=(correction,))
        return predict_costs(graph, strategy, cluster, corrected).step_time_s

    return TrialResidual.of(predict, measured_s)


def _levels(key: Sequence[tuple[str, int]]) -> str:
    return " x ".join(f"{name}:{count}" for name, count in key)


def _read(calibration: Calibration, folder: Path, path: str) -> _Trial:
    documents = {}
    for name in (REQUEST, RESULT):
        file = folder / name
        if not file.is_file():
            raise InputError(path, str(folder), f"{_KEPT}; {name} is missing")
        try:
            text = file.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(path, str(folder), f"{_KEPT}; {name} cannot be read ({error})") from None
        documents[name] = loads(text, str(file))
    request = Fields(documents[REQUEST], f"{path}.request", documents[REQUEST])
    plan = read_nested(request.at("plan"), Plan.from_dict, request.raw("plan"))
    graph = read_nested(request.at("graph"), load_graph, request.raw("graph"))
    graph = planned_graph(graph, plan.document, f"{path}.request.graph")
    experience = trial_residual_of_report(plan, graph, calibration, documents[RESULT], f"{path}.result")
    return _Trial(str(folder), plan, graph, experience, digest(documents[RESULT]))
