"""The nearest plan that a trainer can express, exported with its loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from autosbp.cluster.spec import Cluster
from autosbp.costmodel.calibration import Calibration
from autosbp.errors import UnsupportedError
from autosbp.export import export_plan
from autosbp.export._base import NEAREST_TO, check_calibration, required_graph
from autosbp.graph.ir import LogicalGraph
from autosbp.plan.plan import Plan
from autosbp.plan.schedules import RUNNABLE
from autosbp.program.parallelism import parallelism_of
from autosbp.search.plan_options import PlanOptions
from autosbp.search.trainer_plans import nearest_known, plan_for
from autosbp.trainers import TRAINERS

ENOUGH_LOSS = 0.01
"""Loss of a known strategy up to which no other is searched."""
_MAX_NAMED = 3
"""Differences that are listed; the rest are counted."""


@dataclass(frozen=True, slots=True)
class NearestExport:
    """An export, and how it differs from the plan.

    Args:
        files: contents by name.
        plan: the exported plan; the given one if the target expresses it exactly.
        loss: step time of the exported plan relative to the given one, less 1; 0 if it is the same.
        differences: what of the given plan the target cannot express, in words; empty if it is the same.
    """

    files: Mapping[str, str]
    plan: Plan
    loss: float = 0.0
    differences: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """The loss and its causes in one line, such as ``+3.1 %: linear_24 (lm_head.weight) is tensor parallel ...``."""
        return f"{100 * self.loss:+.1f} %: {'; '.join(self.differences)}" if self.differences else "the same plan"


def export_nearest(
    target: str, plan: Plan, graph: LogicalGraph | None = None, calibration: Calibration | None = None
) -> NearestExport:
    """Export a plan, or the nearest one that ``target`` can express.

    The nearest plan is the fastest of the plan's own strategy and its baselines, all made conform, and of a search
    restricted to what the target can express. The search is left out if one of the others loses at most ``ENOUGH_LOSS``.

    Args:
        calibration: the plan's, if it was made with one and the target cannot express it.

    Raises:
        InputError: an unknown target, or another graph or calibration than the plan's.
        UnsupportedError: the target can train nothing of the kind, or is no trainer.
        InfeasibleError: no strategy that the target can express fits in memory.
    """
    try:
        return NearestExport(export_plan(target, plan, graph, calibration), plan)
    except UnsupportedError as error:
        if target not in TRAINERS:
            raise
        refusal = str(error).removeprefix(f"{target} ")
    graph = required_graph(plan, graph, target)
    check_calibration(plan, calibration)
    known = (plan.strategy, *map(plan.baseline_strategy, plan.document["baseline_strategies"]))
    options = _options(plan)
    found = nearest_known(target, graph, plan, calibration, options, known)
    if found is None or _loss(found, plan) > ENOUGH_LOSS:
        cluster = Cluster.from_dict(plan.document["cluster"])
        found = plan_for(target, graph, cluster, calibration, options, known=known)
    loss = _loss(found, plan)
    deviating = [each.summary for each in parallelism_of(graph, plan.strategy).deviations]
    more = len(deviating) - _MAX_NAMED
    differences = (*deviating[:_MAX_NAMED], *([f"{more} more"] if more > 0 else []))
    stated = NearestExport({}, found, loss, differences or (refusal,))
    nearest = found.with_field(NEAREST_TO, {"plan_id": plan.plan_id, "loss": loss, "summary": stated.summary}, 0.0)
    return replace(stated, plan=nearest, files=export_plan(target, nearest, graph, calibration))


def _loss(found: Plan, plan: Plan) -> float:
    return float(found.document["step_time_s"] / plan.document["step_time_s"] - 1)


def _options(plan: Plan) -> PlanOptions:
    """The plan's task: batch, optimizer, precision and memory, without constraints on its layouts."""
    asked = PlanOptions.from_dict(plan.document.get("options", {}))
    return replace(
        asked,
        global_batch=plan.strategy.global_batch,
        micro_batch=None,
        searcher="auto",
        pins={},
        baselines=(),
        stages=None,
        schedules=RUNNABLE,
        storage=None,
        data_parallel=None,
        tensor_parallel=None,
        stage_of={},
        recompute=None,
        grid=None,
    )
