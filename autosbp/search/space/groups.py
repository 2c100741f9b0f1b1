"""Pipelines on a cluster with groups of unlike devices (``autosbp.groups``): more of the model where devices are quicker.

Layouts are chosen as if all devices were the quickest (``Cluster.quickest``), which bounds from below what any stage takes.
What whole blocks take on a group is solved for each; cuts are balanced by that, within the memory of each stage's devices,
and then moved a little as long as the step gets shorter. Plans are costed with each stage's own devices and
links (``costmodel.pipelined``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

from autosbp.cluster import Cluster
from autosbp.costmodel.deliveries import LinkModel
from autosbp.costmodel.evaluate import evaluate
from autosbp.costmodel.pipelined import pipelined_step_s
from autosbp.costmodel.stage_models import stage_groups, stage_limits
from autosbp.costmodel.timeline import Timeline
from autosbp.graph.ir import LogicalGraph
from autosbp.plan import Costs, Strategy
from autosbp.search import SearchProblem, SearchResult
from autosbp.search.plan_options import PlanOptions
from autosbp.search.space.best import Best
from autosbp.search.space.candidate import Candidate, Tried
from autosbp.search.space.costing import CERTAIN, INFINITE, ROUNDING
from autosbp.search.space.recompute import Recomputation
from autosbp.search.space.space_solver import Kind
from autosbp.search.space.tally import Tally
from autosbp.search.space.walking import Walk
from autosbp.search.stages.cuts import Pace, Places, sums_before
from autosbp.search.stages.layouts import LayoutProblems, Layouts, Space, SpaceKey, fullest_of
from autosbp.search.stages.pipelines import pipelines, shortlist

NEAR = 1.1
"""Times the best, of strategies whose cuts are moved."""
CUTS = 4
"""Times that a strategy is cut, with less and less room for stages that exceed theirs."""
MOVES = 32
"""Cuts that are tried around those of a strategy."""
Groups = tuple[int, ...]
Parts = tuple[float, float, float]
"""Seconds before the blocks, of one of them, and behind them."""


class GroupSearch(Best):
    """See the module's docstring; structures are those with stages.

    Args:
        cluster: with groups.
        whole: problems of the cluster, with whose models strategies are costed.
        of: problems on other devices and links.
    """

    evens = False

    def __init__(
        self,
        cluster: Cluster,
        whole: LayoutProblems,
        of: Callable[[Cluster], LayoutProblems],
        options: PlanOptions,
        deadline: float,
        report: Callable[[float], bool] | None,
    ) -> None:
        asked = options.memory_limit_bytes
        each = [(group.num_devices, group.device.memory_bytes) for group in cluster.groups]
        room = sum(count * (size if asked is None else min(size, asked)) for count, size in each)
        super().__init__(of(cluster.quickest()), options, room // cluster.num_devices, deadline, report)
        self.cluster, self.whole, self._of = cluster, whole, of
        self._slow_links = LinkModel(whole.network, whole.compute.copy_bytes_per_s)
        self._recut = False
        self._problems: dict[Groups, LayoutProblems] = {}
        self._parts: dict[tuple[Groups, SpaceKey], tuple[Space, Parts | None]] = {}

    def _pipelined(self, walk: Walk, at: int, kind: Kind, tally: Tally) -> tuple[float, float]:
        """Where cuts alone had to make room, other ways to store parameters are looked at, too."""
        self._recut = False
        found = super()._pipelined(walk, at, kind, tally)
        if self._recut and not self._out_of_time():
            self._try(walk.structure, walk.sizes[at], kind, tally)
        return found

    def has_room(self, candidate: Candidate) -> bool:
        """On the devices of every stage."""
        return self._excess(candidate) <= 0 and self.host_has_room(candidate.strategy)

    def _excess(self, candidate: Candidate) -> int:
        costs: Costs = candidate.costs
        return costs.excess_bytes(
            self.options.memory_limit_bytes or max(each.memory_limit_bytes for each in costs.stages)
        )

    def _tighter(self, limit: int, result: SearchResult, candidates: Sequence[Tried]) -> int:
        costed = [each for each in candidates if isinstance(each, Candidate)]  # all are, on groups
        return min(limit, result.memory_bytes) - 2 * max(min(map(self._excess, costed)), 1)

    def _groups(self, space: Space) -> tuple[Groups, ...]:
        """Of each stage."""
        size = space.view.size
        return tuple(stage_groups(self.cluster, size, stage, stage) for stage in range(space.stages))

    def _blocks_s(self, layouts: Layouts, kind: Kind, tally: Tally) -> float:
        """Blocks dealt out to stages on each of which they take what they take there at the least."""
        groups = self._groups(layouts.space)
        found = {each: self._least_s(layouts.space, each, kind, tally) for each in dict.fromkeys(groups)}
        parts = [each for each in map(found.__getitem__, groups) if each is not None]
        if self.problems.folding is None or len(parts) < len(groups):
            return -INFINITE
        blocks = [block_s for _, block_s, _ in parts]
        return len(groups) * fullest_of(self.problems.folding.count, blocks, parts[0][0], parts[-1][2])

    def _least_s(self, space: Space, groups: Groups, kind: Kind, tally: Tally) -> Parts | None:
        """Bounds of a space's parts where all its stages are on these groups; None where nothing is folded."""
        key = groups, space.key
        if key not in self._parts:
            problems = self._on(groups)
            layouts = problems.build(space, None)

            def least(problem: SearchProblem) -> float:
                return self._search(problem, kind, tally, INFINITE).lower_bound_s

            # With the space, whose key no other has while it is there.
            self._parts[key] = space, problems.block_parts(layouts, least)
        return self._parts[key][1]

    def _on(self, groups: Groups) -> LayoutProblems:
        if groups not in self._problems:
            self._problems[groups] = self._of(self.cluster.part(groups))
        return self._problems[groups]

    def _op_seconds(self, graph: LogicalGraph, strategy: Strategy, space: Space) -> dict[Groups, dict[str, float]]:
        """Of a microbatch, on the devices of each stage, were it to have all ops."""
        found = {}
        for groups in dict.fromkeys(self._groups(space)):
            problems = self._on(groups)
            found[groups] = Timeline(graph, strategy, problems.boxing(strategy.mesh), problems.compute).op_seconds()
        return found

    def _candidates(
        self, layouts: Layouts, result: SearchResult, schedules: tuple[str, ...] | None = None
    ) -> Iterator[Candidate]:
        """As of stages that are alike, with cuts for these that are not. What ops take is known by about: where a stage has
        more than its devices have room for, it is cut again with as much less."""
        space, problems = layouts.space, self.problems
        graph = problems.bound(space.micro_batch)
        strategy = problems.strategy(layouts, result.assignment)
        limits = stage_limits(self.cluster, space.view.size, space.stages, self.options.memory_limit_bytes)
        spent = self._op_seconds(graph, strategy, space)
        taken = {name: space.stages * size for name, size in problems.op_bytes(layouts, result.assignment).items()}
        rooms = limits
        for _ in range(CUTS):
            found = pipelines(
                graph, strategy, spent[self._groups(space)[0]], space.stages, self._slow_links,
                schedules or self.options.schedules, problems.starts, self._held,
                partial(self._pace, space, spent, taken, rooms),
            )  # fmt: skip
            tight: Candidate | None = None
            for estimate, each in shortlist(list(found)):
                if estimate >= CERTAIN * self._cutoff * self._spare(space):
                    return
                if space.again:
                    each = Recomputation(problems, self.options.recompute, self.limit, limits).of(each)
                tight = self._moved(self._costed_whole(graph, each))
                yield tight
                if self.has_room(tight):
                    return
            if tight is None:
                return
            self._recut = True
            before, rooms = rooms, _rooms(graph, tight, taken, rooms)
            if rooms == before:
                return

    def _pace(
        self,
        space: Space,
        spent: Mapping[Groups, Mapping[str, float]],
        taken: Mapping[str, int],
        rooms: tuple[int, ...],
        places: Places,
    ) -> Pace:
        at = list(places.at)
        size = sums_before(places.program, taken)
        known = {groups: sums_before(places.program, seconds) for groups, seconds in spent.items()}
        parts = {groups: (sums[at], float(sums[-1])) for groups, sums in known.items()}
        mine = [parts[groups] for groups in self._groups(space)]
        return Pace(tuple(one for one, _ in mine), tuple(one for _, one in mine), size[at], float(size[-1]), rooms)

    def _costed_whole(self, graph: LogicalGraph, strategy: Strategy) -> Candidate:
        """By the models of the cluster as it is."""
        return Candidate(strategy, evaluate(graph, strategy, self.whole.boxing(strategy.mesh), self.whole.compute))

    def _moved(self, candidate: Candidate) -> Candidate:
        """With cuts moved a little, as long as the step gets shorter and it fits."""
        strategy, best_s = candidate.strategy, candidate.costs.step_time_s
        fixed = self._held or strategy.recompute or best_s > NEAR * self._cutoff
        if strategy.pipeline is None or fixed or not self.has_room(candidate):
            return candidate
        graph, boxing = self.problems.bound(strategy.micro_batch), self.whole.boxing(strategy.mesh)
        starts = self.problems.starts
        names = [node.name for node in graph.nodes if node.name in graph.computed][1:]
        places = [name for name in names if starts is None or name in starts]
        pipeline, waiting = strategy.pipeline, list(_neighbours(places, strategy.pipeline.cuts))
        tried = {pipeline.cuts}
        for _ in range(MOVES):
            if not waiting or self._out_of_time():
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
        found = self._costed_whole(graph, strategy)
        return found if self.has_room(found) else candidate


def _rooms(
    graph: LogicalGraph, candidate: Candidate, taken: Mapping[str, int], rooms: tuple[int, ...]
) -> tuple[int, ...]:
    """For stages that exceed their limits, as much less than cuts were told that they have as would have done."""
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
    """The cuts with a run of them a place before or behind, or one of them two, in order still."""
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
