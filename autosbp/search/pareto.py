"""Pareto front of step time and memory: plans of which none is both slower and larger than another.

Each plan is the fastest under a memory limit. The lowest limit is the memory of the smallest strategy found, or lower
if the search still finds a plan there. The limits between that and the memory of the fastest plan are evenly spaced in
their logarithm.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from autosbp.cluster.spec import Cluster
from autosbp.costmodel.calibration import Calibration
from autosbp.errors import InfeasibleError, InputError
from autosbp.graph.ir import LogicalGraph
from autosbp.plan.plan import Plan, Strategy
from autosbp.search.branch_and_bound.candidate import Candidate, step_s
from autosbp.search.plan_options import PlanOptions
from autosbp.search.planner import Planner, first_plan
from autosbp.search.progress import FRONT, Progress, ProgressReporter
from autosbp.utils.gc_thresholds import raised_gc_thresholds
from autosbp.utils.json_io import check_integer

MAX_POINTS = 64
TIME_SHARE = 0.25
"""Share of the time limit for each plan except the fastest."""
LIMIT_FACTOR = 0.98
PROBES = 4
"""Number of limits tried below the least memory found, each ``LIMIT_FACTOR`` times the previous, until nothing fits."""


def pareto_front(
    graph: LogicalGraph,
    cluster: Cluster,
    calibration: Calibration | None = None,
    options: PlanOptions | None = None,
    num_points: int = 6,
    progress: Progress | None = None,
    start: Strategy | None = None,
) -> tuple[Plan, ...]:
    """Plan the Pareto front.

    Args:
        num_points: maximum number of plans, 2 to ``MAX_POINTS``.

    The other arguments and the errors are those of ``make_plan``.

    Returns:
        Plans, fastest first, each with less memory than the one before. The last one has the least memory for which the
        search finds a plan. Only the fastest has the requested baselines.
    """
    check_integer("num_points", num_points, 2, MAX_POINTS)
    if cluster.groups:
        raise InputError("cluster", cluster.name, "a Pareto front requires identical devices")
    with raised_gc_thresholds():
        return _Front(graph, cluster, calibration, options or PlanOptions(), ProgressReporter(progress), start).run(
            num_points
        )


class _Front:
    """State of one front.

    ``plans`` maps each memory limit to its plan; the first uses the options ``asked``, the others ``options``.
    """

    def __init__(
        self,
        graph: LogicalGraph,
        cluster: Cluster,
        calibration: Calibration | None,
        options: PlanOptions,
        watch: ProgressReporter,
        start: Strategy | None,
    ) -> None:
        self.graph, self.cluster, self.calibration, self.watch = graph, cluster, calibration, watch
        self.asked, self.options = (
            options,
            replace(options, baselines=(), time_limit_s=TIME_SHARE * options.time_limit_s),
        )
        self.first, plan, candidate = first_plan(graph, cluster, calibration, options, watch, start)
        self.plans = {self.first.limit: plan}
        self.known = [each for each in (candidate, self.first.warm_start.candidate) if each is not None]

    def run(self, num_points: int) -> tuple[Plan, ...]:
        (fastest,) = self.plans.values()
        most, least = _memory(fastest), self._least_memory()
        for step in range(1, num_points - 1):
            self._plan_within(round(most * (least / most) ** (step / (num_points - 1))))
        self._repeat_fastest()
        return _thinned(front(self.plans.values()), num_points)

    def _repeat_fastest(self) -> None:
        """Repeat the fastest plan with a faster strategy as its start, if a lower limit led to one."""
        limit = self.first.limit
        quickest = min(self._fitting(limit), key=step_s)
        if step_s(quickest) < self.plans[limit].document["step_time_s"] and not self.watch.stopped:
            self.plans[limit], _ = self._planner(self.asked).found(quickest)

    def _fitting(self, limit: int) -> list[Candidate]:
        return [each for each in self.known if each.costs.memory_bytes_per_device <= limit]

    def _least_memory(self) -> int:
        """The least memory of any plan found: first of the smallest strategy, then under lower limits."""
        lean = [] if self.watch.stopped else self.first.low_memory_strategies()
        self.known += lean
        if lean and lean[0].costs.memory_bytes_per_device < self.first.limit:
            self._plan_within(lean[0].costs.memory_bytes_per_device)
        found: Plan | None = self.plans[self.first.limit]
        for _ in range(PROBES):
            if found is None:
                break
            found = self._plan_within(math.floor(LIMIT_FACTOR * min(map(_memory, self.plans.values()))))
        return min(map(_memory, self.plans.values()))

    def _plan_within(self, limit: int) -> Plan | None:
        """The fastest plan within a limit; None if the search finds none or was stopped.

        A limit that is known not to bind is not searched again.
        """
        for under, plan in self.plans.items():
            if _memory(plan) <= limit <= under:
                return plan
        if self.watch.stopped:
            return None
        known = min(self._fitting(limit), key=step_s, default=None)
        try:
            plan, candidate = self._planner(replace(self.options, memory_limit_bytes=limit)).found(known)
        except InfeasibleError:
            return None
        self.plans[limit] = plan
        self.known.append(candidate)
        return plan

    def _planner(self, options: PlanOptions) -> Planner:
        """A planner that shares the problems of the first one."""
        return Planner(
            self.graph, self.cluster, self.calibration, options, self.watch, self.first.problems, part=FRONT
        )  # fmt: skip


def front(plans: Iterable[Plan]) -> list[Plan]:
    """Plans that no other plan beats in time without more memory, fastest first."""
    kept: list[Plan] = []
    for plan in sorted(plans, key=lambda each: (each.document["step_time_s"], _memory(each))):
        if not kept or _memory(plan) < _memory(kept[-1]):
            kept.append(plan)
    return kept


def _thinned(plans: list[Plan], num_points: int) -> tuple[Plan, ...]:
    """Drop the plans closest to others in memory; the first and last stay."""
    kept = list(plans)
    while len(kept) > num_points:
        inner = range(1, len(kept) - 1)
        kept.pop(min(inner, key=lambda at: _memory(kept[at - 1]) / _memory(kept[at + 1])))
    return tuple(kept)


def _memory(plan: Plan) -> int:
    return int(plan.document["memory_bytes_per_device"])
