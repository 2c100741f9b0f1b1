"""The Pareto front of step time against memory: plans of which none is both slower and larger than another.

Each plan is the fastest under a memory limit. The least limit is what the leanest strategy takes, or less where search finds
something; limits between that and what the fastest plan takes are spaced evenly in their logarithm.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from autosbp.cluster import Cluster
from autosbp.costmodel.calibration import Calibration
from autosbp.errors import InfeasibleError, InputError
from autosbp.graph.ir import LogicalGraph
from autosbp.jsonio import check_integer
from autosbp.plan import Plan, Strategy
from autosbp.search._garbage import seldom_collected
from autosbp.search._watch import FRONT, Progress, Watch
from autosbp.search.plan_options import PlanOptions
from autosbp.search.planner import Planner, first_plan
from autosbp.search.space.candidate import Candidate

MAX_POINTS = 64
SHARE = 0.25
"""The part of the time limit that each plan but the fastest has."""
LOWER = 0.98
PROBES = 4
"""So many limits below the least memory found are tried, each a little lower, until nothing fits."""


def pareto_front(
    graph: LogicalGraph,
    cluster: Cluster,
    calibration: Calibration | None = None,
    options: PlanOptions | None = None,
    num_points: int = 6,
    progress: Progress | None = None,
    start: Strategy | None = None,
) -> tuple[Plan, ...]:
    """At most ``num_points`` plans, fastest first, each with less memory than the one before; the last has the least that
    search finds anything for. The fastest has the baselines that are asked for, the others none. Arguments and errors are
    those of ``make_plan``."""
    check_integer("num_points", num_points, 2, MAX_POINTS)
    if cluster.groups:
        raise InputError("cluster", cluster.name, "devices that are alike are expected of a front: memory is theirs")
    with seldom_collected():
        return _Front(graph, cluster, calibration, options or PlanOptions(), Watch(progress), start).run(num_points)


class _Front:
    """``plans`` are those found so far, by the limit each was searched under: the first with the options ``asked``, others with
    ``options``."""

    def __init__(
        self,
        graph: LogicalGraph,
        cluster: Cluster,
        calibration: Calibration | None,
        options: PlanOptions,
        watch: Watch,
        start: Strategy | None,
    ) -> None:
        self.graph, self.cluster, self.calibration, self.watch = graph, cluster, calibration, watch
        self.asked, self.options = options, replace(options, baselines=(), time_limit_s=SHARE * options.time_limit_s)
        self.first, plan, candidate = first_plan(graph, cluster, calibration, options, watch, start)
        self.plans = {self.first.limit: plan}
        self.known = [each for each in (candidate, self.first.restarted.candidate) if each is not None]

    def run(self, num_points: int) -> tuple[Plan, ...]:
        (fastest,) = self.plans.values()
        most, least = _memory(fastest), self._least()
        for step in range(1, num_points - 1):
            self._within(round(most * (least / most) ** (step / (num_points - 1))))
        self._begin_again()
        return _thinned(front(self.plans.values()), num_points)

    def _begin_again(self) -> None:
        """Plan once more without a lower limit where search found something quicker under one: it begins with that."""
        limit = self.first.limit
        quickest = min(self._fitting(limit), key=_step_s)
        if _step_s(quickest) < self.plans[limit].document["step_time_s"] and not self.watch.stopped:
            self.plans[limit], _ = self._planner(self.asked).found(quickest)

    def _fitting(self, limit: int) -> list[Candidate]:
        return [each for each in self.known if each.costs.memory_bytes_per_device <= limit]

    def _least(self) -> int:
        """The least memory of any plan found: of the leanest strategy, less what smaller limits still give."""
        lean = [] if self.watch.stopped else self.first.leanest()
        self.known += lean
        if lean and lean[0].costs.memory_bytes_per_device < self.first.limit:
            self._within(lean[0].costs.memory_bytes_per_device)
        found: Plan | None = self.plans[self.first.limit]
        for _ in range(PROBES):
            if found is None:
                break
            found = self._within(math.floor(LOWER * min(map(_memory, self.plans.values()))))
        return min(map(_memory, self.plans.values()))

    def _within(self, limit: int) -> Plan | None:
        """The fastest plan within a limit; None where search finds none, or was ended. What is known not to bind is not
        searched again."""
        for under, plan in self.plans.items():
            if _memory(plan) <= limit <= under:
                return plan
        if self.watch.stopped:
            return None
        known = min(self._fitting(limit), key=_step_s, default=None)
        try:
            plan, candidate = self._planner(replace(self.options, memory_limit_bytes=limit)).found(known)
        except InfeasibleError:
            return None
        self.plans[limit] = plan
        self.known.append(candidate)
        return plan

    def _planner(self, options: PlanOptions) -> Planner:
        """On the problems of the first one."""
        return Planner(
            self.graph, self.cluster, self.calibration, options, self.watch, self.first.problems, part=FRONT
        )  # fmt: skip


def front(plans: Iterable[Plan]) -> list[Plan]:
    """Those that no other beats in time without more memory, fastest first."""
    kept: list[Plan] = []
    for plan in sorted(plans, key=lambda each: (each.document["step_time_s"], _memory(each))):
        if not kept or _memory(plan) < _memory(kept[-1]):
            kept.append(plan)
    return kept


def _thinned(plans: list[Plan], num_points: int) -> tuple[Plan, ...]:
    """Without those that lie nearest to others, first and last kept."""
    kept = list(plans)
    while len(kept) > num_points:
        inner = range(1, len(kept) - 1)
        kept.pop(min(inner, key=lambda at: _memory(kept[at - 1]) / _memory(kept[at + 1])))
    return tuple(kept)


def _step_s(candidate: Candidate) -> float:
    return candidate.costs.step_time_s


def _memory(plan: Plan) -> int:
    return int(plan.document["memory_bytes_per_device"])
