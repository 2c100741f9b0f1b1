"""Pipelines on groups of unlike devices (``autosbp.cluster.node_groups``), with more of the model on faster devices.

Layouts are chosen as if all devices were the fastest (``Cluster.quickest``), which bounds the time of every stage from
below. The time of whole blocks is solved for each group. Cuts are balanced by these times, within the memory of each
stage's devices, and then moved a little while the step gets shorter. Plans are costed with each stage's own devices and
links (``costmodel.pipeline_cost``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

from autosbp.cluster.spec import Cluster
from autosbp.costmodel.p2p_cost import LinkModel
from autosbp.costmodel.per_stage_models import stage_groups, stage_limits
from autosbp.costmodel.pipeline_cost import pipelined_step_s
from autosbp.costmodel.step_events import Timeline
from autosbp.costmodel.strategy_cost import evaluate
from autosbp.graph.ir import LogicalGraph
from autosbp.plan.plan import Costs, Strategy
from autosbp.search import SearchProblem, SearchResult
from autosbp.search.branch_and_bound.best_first import BestFirstSearch
from autosbp.search.branch_and_bound.candidate import INFINITE, ROUNDING, Candidate, CostedStrategy
from autosbp.search.branch_and_bound.checkpointing import StrategyCheckpointing
from autosbp.search.branch_and_bound.context import Groups, Parts, SearchContext
from autosbp.search.branch_and_bound.strategy_coster import ESTIMATE_CUTOFF, StrategyCoster
from autosbp.search.branch_and_bound.subproblem_solver import SubproblemSolver
from autosbp.search.stages.layout_problems import (
    LayoutProblems,
    Subproblem,
    SubproblemKey,
    least_fullest_unlike_stage_s,
)
from autosbp.search.stages.partition import CutPoints, StageProfiles, prefix_sums
from autosbp.search.stages.schedule_candidates import pipelined_strategies, shortlist

MOVE_CUTOFF = 1.1
"""Step time relative to the incumbent, up to which a strategy's cuts are moved."""
MAX_RECUTS = 4
"""Number of times that a strategy is cut, each with less room for stages that exceed their memory."""
MAX_MOVES = 32
"""Number of cuts tried around those of a strategy."""


def group_search(
    whole: SearchContext, cluster: Cluster, of: Callable[[Cluster], LayoutProblems], deadline: float
) -> BestFirstSearch:
    """A search over pipelines on groups of unlike devices, see the module's docstring.

    Args:
        whole: context of the cluster as it is, whose models cost the strategies.
        cluster: with groups.
        of: creates the layout problems of other devices and links.
        deadline: of ``Clock``.
    """
    asked = whole.options.memory_limit_bytes
    each = [(group.num_devices, group.device.memory_bytes) for group in cluster.groups]
    limit = sum(count * (size if asked is None else min(size, asked)) for count, size in each) // cluster.num_devices
    context = SearchContext(of(cluster.quickest()), whole.options, limit, deadline, whole.clock.report)
    return BestFirstSearch(context, GroupSolver(context, GroupCoster(context, cluster, whole.problems, of)))


class GroupSolver(SubproblemSolver):
    """Bounds blocks by the devices of each stage."""

    def __init__(self, context: SearchContext, devices: GroupCoster) -> None:
        super().__init__(context, devices)
        self.devices = devices

    def blocks_bound_s(self, layouts: Subproblem) -> float:
        """Cost bound by partitioning the blocks over stages, with the least time of a block on each stage."""
        groups = self.devices.groups(layouts.key)
        found = {each: self._part_bounds_s(layouts.key, each) for each in dict.fromkeys(groups)}
        parts = [each for each in map(found.__getitem__, groups) if each is not None]
        if self.problems.folding is None or len(parts) < len(groups):
            return -INFINITE
        blocks = [block_s for _, block_s, _ in parts]
        return len(groups) * least_fullest_unlike_stage_s(
            self.problems.folding.count, blocks, parts[0][0], parts[-1][2]
        )

    def _part_bounds_s(self, space: SubproblemKey, groups: Groups) -> Parts | None:
        """Bounds of a subproblem's parts with all stages on these groups; None if no blocks are folded."""
        key = groups, space.key
        if key not in self.learnt.parts:
            problems = self.devices.problems_on(groups)
            layouts = problems.build(space, None)

            def least(problem: SearchProblem) -> float:
                return self.search(problem).lower_bound_s

            # The entry keeps the subproblem alive, so that its key, which contains an ``id``, stays unique.
            self.learnt.parts[key] = space, problems.block_parts(layouts, least)
        return self.learnt.parts[key][1]


class GroupCoster(StrategyCoster):
    """Costs strategies on each stage's devices, with the models of the ``whole`` cluster."""

    stages_alike = False

    def __init__(
        self, context: SearchContext, cluster: Cluster, whole: LayoutProblems, of: Callable[[Cluster], LayoutProblems]
    ) -> None:
        super().__init__(context)
        self.cluster, self.whole, self._make_problems = cluster, whole, of
        self.links = LinkModel(whole.network, whole.compute.copy_bytes_per_s)
        self._problems: dict[Groups, LayoutProblems] = {}

    def groups(self, space: SubproblemKey) -> tuple[Groups, ...]:
        """The device groups of each stage."""
        size = space.view.size
        return tuple(stage_groups(self.cluster, size, stage, stage) for stage in range(space.stages))

    def problems_on(self, groups: Groups) -> LayoutProblems:
        if groups not in self._problems:
            self._problems[groups] = self._make_problems(self.cluster.part(groups))
        return self._problems[groups]

    def has_room(self, candidate: Candidate) -> bool:
        """Whether a strategy fits on the devices of every stage."""
        return self._excess(candidate) <= 0 and self.host_has_room(candidate.strategy)

    def _excess(self, candidate: Candidate) -> int:
        costs: Costs = candidate.costs
        return costs.memory_excess_bytes(
            self.context.options.memory_limit_bytes or max(each.memory_limit_bytes for each in costs.stages)
        )

    def tightened_limit(self, limit: int, result: SearchResult, candidates: Sequence[CostedStrategy]) -> int:
        costed = [each for each in candidates if isinstance(each, Candidate)]  # on groups, all are candidates
        return min(limit, result.memory_bytes) - 2 * max(min(map(self._excess, costed)), 1)

    def _op_seconds(
        self, graph: LogicalGraph, strategy: Strategy, space: SubproblemKey
    ) -> dict[Groups, dict[str, float]]:
        """Seconds of each op for one microbatch, on the devices of each stage."""
        found = {}
        for groups in dict.fromkeys(self.groups(space)):
            problems = self.problems_on(groups)
            found[groups] = Timeline(graph, strategy, problems.boxing(strategy.mesh), problems.compute).op_seconds()
        return found

    def candidates(
        self, layouts: Subproblem, result: SearchResult, schedules: tuple[str, ...] | None = None
    ) -> Iterator[Candidate]:
        """As ``StrategyCoster.candidates``, with cuts for unlike stages.

        Memory of ops is an estimate. If a stage exceeds its devices' memory, the strategy is cut again with that much
        less room.
        """
        space, problems = layouts.key, self.problems
        graph = problems.bound(space.micro_batch)
        strategy = problems.strategy(layouts, result.assignment)
        limits = stage_limits(self.cluster, space.view.size, space.stages, self.context.options.memory_limit_bytes)
        spent = self._op_seconds(graph, strategy, space)
        taken = {name: space.stages * size for name, size in problems.op_bytes(layouts, result.assignment).items()}
        rooms = limits
        for _ in range(MAX_RECUTS):
            found = pipelined_strategies(
                graph, strategy, spent[self.groups(space)[0]], space.stages, self.links,
                schedules or self.context.options.schedules, problems.starts, self.held,
                partial(self._pace, space, spent, taken, rooms),
            )  # fmt: skip
            tight: Candidate | None = None
            for estimate, each in shortlist(list(found)):
                if estimate >= ESTIMATE_CUTOFF * self.incumbent.cutoff_s * self.checkpointing_slowdown(space):
                    return
                if space.again:
                    each = StrategyCheckpointing(
                        problems, self.context.options.recompute, self.context.limit, limits
                    ).of(each)
                tight = self._move_cuts(self._cost(graph, each))
                yield tight
                if self.has_room(tight):
                    return
            if tight is None:
                return
            self.needed_tighter_cuts = True
            before, rooms = rooms, _reduced_room(graph, tight, taken, rooms)
            if rooms == before:
                return

    def _pace(
        self,
        space: SubproblemKey,
        spent: Mapping[Groups, Mapping[str, float]],
        taken: Mapping[str, int],
        rooms: tuple[int, ...],
        places: CutPoints,
    ) -> StageProfiles:
        at = list(places.at)
        size = prefix_sums(places.program, taken)
        known = {groups: prefix_sums(places.program, seconds) for groups, seconds in spent.items()}
        parts = {groups: (sums[at], float(sums[-1])) for groups, sums in known.items()}
        mine = [parts[groups] for groups in self.groups(space)]
        return StageProfiles(
            tuple(one for one, _ in mine), tuple(one for _, one in mine), size[at], float(size[-1]), rooms
        )

    def _cost(self, graph: LogicalGraph, strategy: Strategy) -> Candidate:
        """Cost a strategy with the models of the cluster as it is."""
        return Candidate(strategy, evaluate(graph, strategy, self.whole.boxing(strategy.mesh), self.whole.compute))

    def _move_cuts(self, candidate: Candidate) -> Candidate:
        """Move cuts a little while the step gets shorter and the strategy fits."""
        strategy, best_s = candidate.strategy, candidate.costs.step_time_s
        fixed = self.held or strategy.recompute or best_s > MOVE_CUTOFF * self.incumbent.cutoff_s
        if strategy.pipeline is None or fixed or not self.has_room(candidate):
            return candidate
        graph, boxing = self.problems.bound(strategy.micro_batch), self.whole.boxing(strategy.mesh)
        starts = self.problems.starts
        names = [node.name for node in graph.nodes if node.name in graph.parameter_dependent][1:]
        places = [name for name in names if starts is None or name in starts]
        pipeline, waiting = strategy.pipeline, list(_neighbours(places, strategy.pipeline.cuts))
        tried = {pipeline.cuts}
        for _ in range(MAX_MOVES):
            if not waiting or self.clock.out_of_time():
                break
            cuts = waiting.pop(0)
            tried.add(cuts)
            moved = replace(strategy, pipeline=replace(pipeline, cuts=cuts))
            step_s = pipelined_step_s(graph, moved, boxing, self.whole.compute)
            if step_s < best_s * (1 - ROUNDING):
                strategy, best_s = moved, step_s
                waiting = [each for each in _neighbours(places, cuts) if each not in tried]
        if strategy is candidate.strategy:
            return candidate
        found = self._cost(graph, strategy)
        return found if self.has_room(found) else candidate


def _reduced_room(
    graph: LogicalGraph, candidate: Candidate, taken: Mapping[str, int], rooms: tuple[int, ...]
) -> tuple[int, ...]:
    """Reduce the room of stages that exceed their memory, by the ratio of limit to actual memory."""
    pipeline = candidate.strategy.pipeline
    assert pipeline is not None
    told, chunk = [0] * pipeline.num_stages, 0
    for node in graph.nodes:
        chunk += chunk < len(pipeline.cuts) and node.name == pipeline.cuts[chunk]
        told[pipeline.stage_of(chunk)] += taken.get(node.name, 0)
    return tuple(
        round(said * stage.memory_limit_bytes / stage.memory_bytes)
        if stage.memory_bytes > stage.memory_limit_bytes
        else room
        for said, stage, room in zip(told, candidate.costs.stages, rooms, strict=True)
    )


def _neighbours(places: Sequence[str], cuts: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Neighbouring cuts: a run of cuts moved by one place, or a single cut by two, in order still."""
    at, count = [places.index(cut) for cut in cuts], len(cuts)
    runs = [
        (first, last)
        for first in range(count)
        for last in range(first, count)
        if first in (0, last) or last == count - 1
    ]
    moves = [(first, last, way) for first, last in runs for way in (-1, 1)]
    moves += [(which, which, way) for which in range(count) for way in (-2, 2)]
    for first, last, way in moves:
        moved = [place + way if first <= which <= last else place for which, place in enumerate(at)]
        if moved[0] >= 0 and moved[-1] < len(places) and all(one < two for one, two in pairwise(moved)):
            yield tuple(places[place] for place in moved)
