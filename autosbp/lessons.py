"""Learning from trials: what ``autosbp trial --workdir`` or the service kept of them, as lessons for a calibration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autosbp.api import load_graph, predict_costs
from autosbp.cluster import Cluster
from autosbp.costmodel.calibration import Calibration, Correction
from autosbp.costmodel.learning import Experience, learn
from autosbp.errors import InputError
from autosbp.graph.ir import LogicalGraph
from autosbp.jsonio import Fields, below, digest, loads
from autosbp.plan import Plan, Strategy

REQUEST, RESULT = "request.json", "result.json"
_KEPT = f"a folder that autosbp trial --workdir kept is expected, with {REQUEST} and {RESULT} of a trial that succeeded"


@dataclass(frozen=True, slots=True)
class Lesson:
    """One trial, its plan's step as it was predicted before and after all lessons, and as it was measured, in seconds."""

    trial: str
    plan_id: str
    before_s: float
    after_s: float
    measured_s: float


@dataclass(frozen=True, slots=True)
class Taught:
    """A calibration that has learned, and what it learned from."""

    calibration: Calibration
    lessons: tuple[Lesson, ...]


@dataclass(frozen=True, slots=True)
class _Trial:
    name: str
    plan: Plan
    graph: LogicalGraph
    experience: Experience
    result_id: str

    def predicted_s(self, calibration: Calibration) -> float:
        return predict_costs(self.graph, self.plan.strategy, self.plan.cluster, calibration).step_time_s


def learn_from_trials(calibration: Calibration, folders: Sequence[Path]) -> Taught:
    """The calibration with one more correction, learned from the trials in ``folders`` and from nothing else.

    Raises:
        InputError: no folder, or one or its copy given twice; a trial that did not succeed, was cut off, is of another
            cluster than the calibration, or issued other collectives than its plan was charged for.
    """
    resolved = [folder.resolve() for folder in folders]
    for at, folder in enumerate(resolved):
        if folder in resolved[:at]:
            raise InputError(
                f"trial[{at}]", str(folders[at]), "every trial teaches once: different folders are expected"
            )
    trials = [_read(calibration, folder, f"trial[{at}]") for at, folder in enumerate(folders)]
    for at, trial in enumerate(trials):
        same = next((other.name for other in trials[:at] if other.result_id == trial.result_id), None)
        if same is not None:
            limit = f"every trial teaches once: another one than that in {same} is expected, not a copy"
            raise InputError(f"trial[{at}]", trial.name, limit)
    taught = learn(calibration, [trial.experience for trial in trials])
    lessons = (
        Lesson(
            trial.name,
            trial.plan.plan_id,
            trial.predicted_s(calibration),
            trial.predicted_s(taught),
            trial.experience.measured_s,
        )
        for trial in trials
    )
    return Taught(taught, tuple(lessons))


def experience_of(
    plan: Plan, graph: LogicalGraph, calibration: Calibration, result: Mapping[str, Any], path: str = "result"
) -> Experience:
    """What one trial's report teaches ``calibration``, whatever that has learned before.

    Raises ``InputError`` that names the field below ``path``: for the report of another plan, one without a step time,
    and one of other collectives than those charged; and for a plan of another cluster.
    """
    cluster = plan.cluster
    if cluster.levels_key != calibration.cluster.levels_key:
        limit = (
            f"a trial on {calibration.cluster.name} is expected, with levels {_levels(calibration.cluster.levels_key)}"
        )
        raise InputError(f"{path}.cluster", f"{cluster.name}: {_levels(cluster.levels_key)}", limit)
    fields = Fields(result, path, result)
    if fields.raw("plan_id") not in (plan.plan_id, plan.stored_id):
        raise InputError(fields.at("plan_id"), fields.raw("plan_id"), f"{plan.plan_id}, the trial's plan, is expected")
    if not fields.boolean("collectives_match"):
        limit = "true is expected: what was measured is not what the plan is charged for"
        raise InputError(fields.at("collectives_match"), False, limit)
    times = fields.mapping("step_time_s")
    measured_s = Fields(times, fields.at("step_time_s"), times).positive("median")
    return experience(graph, plan.strategy, cluster, calibration, measured_s)


def experience(
    graph: LogicalGraph, strategy: Strategy, cluster: Cluster, calibration: Calibration, measured_s: float
) -> Experience:
    """What a measured step of a strategy teaches ``calibration``, whatever that has learned before."""

    def predict(correction: Correction) -> float:
        corrected = replace(calibration, corrections=(correction,))
        return predict_costs(graph, strategy, cluster, corrected).step_time_s

    return Experience.of(predict, measured_s)


def _levels(key: Sequence[tuple[str, int]]) -> str:
    return " x ".join(f"{name}:{count}" for name, count in key)


def _read(calibration: Calibration, folder: Path, path: str) -> _Trial:
    documents = {}
    for name in (REQUEST, RESULT):
        file = folder / name
        if not file.is_file():
            raise InputError(path, str(folder), f"{_KEPT}; there is no {name}")
        try:
            text = file.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(path, str(folder), f"{_KEPT}; {name} cannot be read ({error})") from None
        documents[name] = loads(text, str(file))
    request = Fields(documents[REQUEST], f"{path}.request", documents[REQUEST])
    plan = below(request.at("plan"), Plan.from_dict, request.raw("plan"))
    graph = below(request.at("graph"), load_graph, request.raw("graph"))
    provenance = plan.document["provenance"]
    wanted = Fields(provenance, f"{path}.request.plan.provenance", provenance).raw("graph_hash")
    if graph.graph_hash != wanted:
        raise InputError(f"{path}.request.graph", graph.graph_hash, f"{wanted}, the plan's graph, is expected")
    experience = experience_of(plan, graph, calibration, documents[RESULT], f"{path}.result")
    return _Trial(str(folder), plan, graph, experience, digest(documents[RESULT]))
