"""Export of the nearest plan that a trainer can express, with its loss in step time."""

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
"""Relative loss in step time up to which a known strategy is exported without a search."""
_MAX_NAMED = 3
"""Maximum number of listed differences; others are only counted."""


@dataclass(frozen=True, slots=True)
class NearestExport:
    """An export, and how it differs from the given plan.

    Args:
        files: contents of the files by name.
        plan: the exported plan; the given one if the target can express it.
        loss: relative increase of the predicted step time over the given plan's; 0 if the plans are the same.
        differences: parts of the given plan that the target cannot express, in words; empty if the plans are the same.
    """

    files: Mapping[str, str]
    plan: Plan
    loss: float = 0.0
    differences: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """Loss and differences in one line, such as ``+3.1 %: linear_24 (lm_head.weight) is tensor parallel ...``."""
        return f"{100 * self.loss:+.1f} %: {'; '.join(self.differences)}" if self.differences else "the same plan"


def export_nearest(
    target: str, plan: Plan, graph: LogicalGraph | None = None, calibration: Calibration | None = None
) -> NearestExport:
    """Export a plan, or the nearest plan that ``target`` can express.

    Candidates are the plan's strategy and its baselines, adapted to what the target can express. If the fastest of them
    is more than ``ENOUGH_LOSS`` slower than the plan, a search restricted to the target's strategies follows.

    Args:
        target: a key of ``EXPORTERS``.
        plan: the plan.
        graph: the plan's graph, with symbolic dims.
        calibration: the plan's calibration; required if the plan has one and the target cannot express the plan.

    Raises:
        InputError: the target is unknown, or the graph or calibration is not the plan's.
        UnsupportedError: the target cannot train such a model, or is not a trainer and cannot express the plan.
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
    """The plan's options for batch, optimizer, precision and memory, without constraints on its strategy."""
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
