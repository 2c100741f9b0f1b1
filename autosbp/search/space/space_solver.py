"""One space after another: its problem solved with and without the memory limit, and made into strategies that fit."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil, prod

import numpy as np

from autosbp.beside import is_child
from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.deliveries import LinkModel
from autosbp.costmodel.evaluate import evaluate
from autosbp.costmodel.memory import state_bytes_per_element
from autosbp.costmodel.offload import host_bytes, host_of
from autosbp.errors import InfeasibleError
from autosbp.graph.ir import LogicalGraph
from autosbp.plan import Costs, Strategy
from autosbp.sbp.boxing import split_factor
from autosbp.search import SEARCHERS, SearchOptions, SearchProblem, SearchResult
from autosbp.search.plan_options import PlanOptions
from autosbp.search.problem.weights import CHEAPEST, FASTEST, STEP, USE
from autosbp.search.searchers.tied import tied
from autosbp.search.space.candidate import Candidate
from autosbp.search.space.message_sizes import with_smaller_messages
from autosbp.search.space.micro_batches import micro_batches
from autosbp.search.space.recompute import Recomputation
from autosbp.search.space.timed import Timed
from autosbp.search.stages.layouts import LayoutProblems, Layouts, Space, Structure
from autosbp.search.stages.pipelines import pipelines, shortlist
from autosbp.search.stages.stage_pins import read_stages

MAX_EVALUATIONS = 100_000_000
"""Costed values at which one exact search stops. Counts, unlike clocks, are the same on every machine, so plans are too."""
TIGHTENINGS = 4
"""Searches of one space, each under a lower limit, until what is found fits at its fullest moment."""
BASELINE_GAP = 0.02
"""Where memory binds, what another tool would do is searched to this gap."""
ROUGH_GAP, ROUGH_WORK = 0.05, 0.05
"""Where memory binds, every space is searched to this gap, with a part of the work that closing it may take, before any is
searched to the one asked for."""
REFINED, REFINED_WORK = 2, 0.1
"""Then so many are, with more of that work."""
CERTAIN = 1.01
"""A pipeline whose estimate is so many times what the best takes is not looked into."""
ROUNDING = 1e-12
"""Of two strategies that differ by so little the first found stays."""
INFINITE = float("inf")
RECOMPUTED = 4 / 3
"""The most that recomputation makes of a step: backward takes twice what forward does."""
_SEARCHERS = {**SEARCHERS, "tied": tied}


@dataclass
class Tally:
    """What the searches of one plan add up to. ``share`` is the part of a whole search that one of them may take, ``cut``
    whether one of them was ended before it had looked at all."""

    share: float = 1.0
    evaluations: int = 0
    bounds: list[float] = field(default_factory=list)
    cut: bool = False


@dataclass(frozen=True)
class Kind:
    """What is searched: by which searcher, how parameters may be stored, quickest first, and whether bounds are wanted.
    Parameters that are ``pinned`` apart from their use may cost less than search charges: it knows no shared messages of
    them."""

    searcher: str
    storages: tuple[str, ...] = (FASTEST, STEP, USE)
    proves: bool = True
    pinned: bool = False

    @property
    def relaxes(self) -> bool:
        """Whether the searcher proves bounds."""
        return self.searcher in ("auto", "exact", "tied")


class SpaceSolver(Timed):
    """Solves spaces, and keeps the best strategy.

    Args:
        limit: bytes per device.
        deadline: see ``Timed``.
        report: told the best step time of a strategy so far, inf before there is one; when it returns False, the search
            ends as at the deadline.
    """

    def __init__(
        self,
        problems: LayoutProblems,
        options: PlanOptions,
        limit: int,
        deadline: float,
        report: Callable[[float], bool] | None,
    ) -> None:
        self.problems, self.options, self.limit = problems, options, limit
        self.set_deadline(deadline)
        self.report = report
        self.links = LinkModel(problems.network, problems.compute.copy_bytes_per_s)
        self.recomputes = _recomputes(problems, options)
        self.best: Candidate | None = None
        self.problem: InfeasibleError | None = None
        self.failures: list[InfeasibleError] = []
        self._costed: deque[Candidate] = deque(maxlen=8)
        self._exceeding: set[tuple[Hashable, int]] = set()
        self._rough: dict[Hashable, tuple[float, Space]] | None = None

    def micro_batches(self, stages: int) -> list[int]:
        """Microbatch sizes to try, largest first."""
        options, devices = self.options, self.problems.network.cluster.num_devices
        return list(micro_batches(self.problems.global_batch, stages, devices, options.schedules, options.micro_batch))

    @cached_property
    def _held(self) -> Mapping[str, int]:
        """Stages of ops that are given."""
        return read_stages(self.problems.graph, self.options.stage_of)

    def _space(self, structure: Structure, micro_batch: int, storage: str) -> Space:
        """With what is recomputed anyway."""
        return Space(structure, micro_batch, storage, self.recomputes[0])

    def _first(self, structure: Structure, kind: Kind, limit: int | None = None) -> int:
        """Index of the largest microbatch that could fit, by bisection: memory falls and even splits get fewer with the
        microbatch. Raises ``InfeasibleError`` when none could."""
        sizes, limit = self.micro_batches(structure.stages), limit or self.limit
        storage = CHEAPEST if len(kind.storages) > 1 else kind.storages[0]
        if self._fits_at_once(self._space(structure, sizes[0], kind.storages[0]), limit):
            return 0
        low, high, first = 0, len(sizes) - 1, -1
        problem: InfeasibleError | None = None
        while low <= high:
            middle = (low + high) // 2
            try:
                least = self.problems.least_memory(self._space(structure, sizes[middle], storage))
            except InfeasibleError as error:
                problem, high = nearer(problem, error), middle - 1
                continue
            if least > limit:
                detail = f"even the least memory of every op does not fit at a microbatch of {sizes[middle]}"
                problem = nearer(problem, InfeasibleError("memory_limit_bytes", limit, least, detail))
                low = middle + 1
            else:
                first, high = middle, middle - 1
        if first < 0:
            batch = self.problems.global_batch
            raise problem or InfeasibleError("global_batch", batch, None, "no microbatch splits evenly")
        return first

    def _try(self, structure: Structure, size: int, kind: Kind, tally: Tally, limit: int | None = None) -> None:
        """Every way to store parameters that differs from those before it; ``limit`` is where the first begins."""
        seen: list[SearchProblem] = []
        for storage in kind.storages:
            try:
                layouts = self.problems.build(self._space(structure, size, storage), limit or self.limit)
                if not any(_same_costs(layouts.problem, other) for other in seen):
                    seen.append(layouts.problem)
                    self._keep(self._limited(layouts.space, kind, tally, self._cutoff, limit))
            except InfeasibleError as error:
                self.problem = nearer(self.problem, error)

    def _within_limit(self, space: Space, kind: Kind, tally: Tally) -> Candidate:
        """The best strategy of a space under the limit, with recomputation where there is none without."""
        for again in self.recomputes[:-1]:
            with suppress(InfeasibleError):
                return self._limited(replace(space, again=again), kind, tally, INFINITE)
        return self._limited(replace(space, again=self.recomputes[-1]), kind, tally, INFINITE)

    def _blocks_s(self, layouts: Layouts, kind: Kind, tally: Tally) -> float:
        """What the blocks of the fullest stage make of the cost."""

        def least(problem: SearchProblem) -> float:
            return self._search(problem, kind, tally, INFINITE).lower_bound_s

        return self.problems.whole_blocks(layouts, least)

    def _working(self, space: Space) -> float:
        """The part of a step that no stage waits for others."""
        count = self.problems.num_micro(space)
        return count / (count + space.stages - 1)

    def _fits_at_once(self, space: Space, limit: int) -> bool:
        """Whether the least memory of the first way to store parameters fits: that problem is built anyway."""
        try:
            return self.problems.least_memory(space) <= limit
        except InfeasibleError:
            return False

    def _relaxed(self, space: Space, kind: Kind, tally: Tally) -> tuple[float, Candidate | None]:
        """A bound on the space of one set of devices, and its optimum where that fits in memory."""
        layouts = self.problems.build(space, None)
        result = self._solve(layouts, kind, tally, INFINITE)
        if result.memory_bytes > self.limit or (result.cost_s >= self._cutoff and not kind.pinned):
            return result.lower_bound_s, None
        return result.lower_bound_s, self._fitting(layouts, result)

    def _limited(self, space: Space, kind: Kind, tally: Tally, cutoff_s: float, first: int | None = None) -> Candidate:
        """The best strategy found under the memory limit; raises ``InfeasibleError``.

        Search adds memory up by op. What the strategy takes at its fullest moment is known once it is there: where that
        exceeds the limit, search begins anew with twice as much less, so that it is seldom repeated."""
        limit, needed = first or self.limit, 0
        cutoff_s *= self._spare(space)
        for _ in range(TIGHTENINGS):
            try:
                layouts = self.problems.build(space, limit)
                result = self._solve(layouts, kind, tally, cutoff_s)
            except InfeasibleError:
                if limit == self.limit:
                    raise
                break
            if self._rough is not None and result.gap > self.options.gap_tolerance:
                known, _ = self._rough.get(space.key, (INFINITE, space))
                self._rough[space.key] = min(result.lower_bound_s, known), space
            if result.cost_s >= CERTAIN * cutoff_s:
                break
            candidates = list(self._candidates(layouts, result))
            fitting = self._fits(candidates)
            if fitting is not None:
                return fitting
            if not candidates:
                break
            needed = min(candidate.costs.memory_bytes_per_device for candidate in candidates)
            if self._out_of_time() and cutoff_s < INFINITE:
                break
            limit = self._tighter(limit, result, candidates)
        detail = f"what search found at a microbatch of {space.micro_batch} takes more at its fullest moment"
        raise InfeasibleError("memory_limit_bytes", self.limit, needed, detail)

    def begin_roughly(self) -> None:
        """Search to ``ROUGH_GAP`` under memory limits until ``refine``."""
        self._rough = {}

    def refine(self, kind: Kind, tally: Tally, spent: Callable[[], bool]) -> None:
        """Once more, as closely as is asked for, what rough searches left open: where the most may be found first."""
        rough, self._rough = self._rough or {}, None
        for bound, space in sorted(rough.values(), key=lambda entry: entry[0])[:REFINED]:
            if spent() or bound >= self._cutoff * self._spare(space):
                break
            try:
                self._keep(self._limited(space, kind, tally, self._cutoff))
            except InfeasibleError as error:
                self.problem = nearer(self.problem, error)

    def _tighter(self, limit: int, result: SearchResult, candidates: Sequence[Candidate]) -> int:
        needed = min(candidate.costs.memory_bytes_per_device for candidate in candidates)
        return min(limit, result.memory_bytes) - 2 * (needed - self.limit)

    def _fits(self, candidates: Iterable[Candidate]) -> Candidate | None:
        """The quickest of those that fit."""
        fitting = [each for each in candidates if self.has_room(each)]
        return min(fitting, key=lambda each: each.costs.step_time_s, default=None)

    def has_room(self, candidate: Candidate) -> bool:
        """On the device, and on the host for what is offloaded."""
        return candidate.costs.memory_bytes_per_device <= self.limit and self.host_has_room(candidate.strategy)

    def host_has_room(self, strategy: Strategy) -> bool:
        """For what is offloaded to it."""
        return not strategy.offload or self.host_needs(strategy) <= host_of(self.problems.network.cluster).memory_bytes

    def host_needs(self, strategy: Strategy) -> int:
        """Bytes of what is offloaded, of one device; a pipeline's stages hold about equal parts."""
        return ceil(host_bytes(self.problems.graph.trained, strategy) / strategy.num_stages)

    def _fitting(self, layouts: Layouts, result: SearchResult) -> Candidate | None:
        candidates = list(self._candidates(layouts, result))
        fitting = self._fits(candidates)
        if fitting is None:
            self._exceed(layouts.space, candidates)
        return fitting

    def _exceed(self, space: Space, candidates: Sequence[Candidate]) -> None:
        """Remember that these take more at their fullest moment than there is, though search thought that they fit."""
        if candidates and not space.again:
            self._exceeding.add((space.structure.key, space.micro_batch))

    def _exceeds(self, structure: Structure, micro_batches: Iterable[int]) -> bool:
        """Whether strategies of it did at some of these."""
        return any((structure.key, size) in self._exceeding for size in micro_batches)

    def _spare(self, space: Space) -> float:
        """How many times slower than the best a strategy may be that recomputes all, when fewer blocks might do."""
        return RECOMPUTED if space.again and not self.options.recompute else 1.0

    def _once(self, space: Space) -> float:
        """What part of a problem's cost is left, at the least, where not all is recomputed that the problem recomputes."""
        return 0.5 if space.again and not self.options.recompute else 1.0

    def _candidates(self, layouts: Layouts, result: SearchResult) -> Iterable[Candidate]:
        """The strategy of an assignment; of stages, with each schedule, the quickest by estimate first."""
        space, problems = layouts.space, self.problems
        graph, boxing = problems.bound(space.micro_batch), problems.boxing(space.view)
        strategy = problems.strategy(layouts, result.assignment)
        found: list[tuple[float, Strategy]] = [(0.0, strategy)]
        if space.stages > 1:
            scale = 1 / problems.weights(space).micro
            seconds = {name: scale * spent for name, spent in problems.op_seconds(layouts, result.assignment).items()}
            variants = [strategy]
            if space.storage == FASTEST and result.memory_bytes <= self.limit:
                # Weight gradients of parameters that are stored as they are used can fill waits.
                whole = problems.strategy(layouts, result.assignment, as_used=True)
                fits = self._state_bytes(graph, whole) <= self.limit * space.stages
                variants += [whole] if whole.parameters != strategy.parameters and fits else []
            kinds = self.options.schedules
            found = [
                each
                for variant in variants
                for each in pipelines(
                    graph, variant, seconds, space.stages, self.links, kinds, problems.starts, self._held
                )
            ]
            found = shortlist(found)
        for estimate, each in found:
            if estimate >= CERTAIN * self._cutoff * self._spare(space):
                return
            if space.again:
                each = Recomputation(problems, self.options.recompute, self.limit).of(each)
            candidate = with_smaller_messages(
                Candidate(each, self._costs(graph, each, boxing)), problems.sizes,
                lambda strategy: self._costs(graph, strategy, boxing), self.has_room, self.limit,
            )  # fmt: skip
            yield candidate
            if candidate.costs.memory_bytes_per_device <= self.limit:
                return

    def _costs(self, graph: LogicalGraph, strategy: Strategy, boxing: BoxingModel) -> Costs:
        """Of a strategy; baselines and search often come to the same one."""
        for known in self._costed:
            if known.strategy == strategy:
                return known.costs
        self.require_time()
        costs = evaluate(graph, strategy, boxing, self.problems.compute, self.problems.known_chunks)
        self._costed.append(Candidate(strategy, costs))
        return self._costed[-1].costs

    def _state_bytes(self, graph: LogicalGraph, strategy: Strategy) -> float:
        """Parameters, gradients and optimizer state of all stages, per device of one."""
        return sum(
            prod(leaf.meta.sizes) / split_factor(strategy.parameters[leaf.name], strategy.mesh)
            * state_bytes_per_element(leaf.meta, strategy.optimizer, offload=strategy.offload)
            for leaf in graph.trained
        )  # fmt: skip

    def _solve(self, layouts: Layouts, kind: Kind, tally: Tally, cutoff_s: float) -> SearchResult:
        return self._search(layouts.problem, kind, tally, cutoff_s)

    def _search(self, problem: SearchProblem, kind: Kind, tally: Tally, cutoff_s: float) -> SearchResult:
        self.require_time()
        rough = self._rough is not None and problem.memory_limit_bytes is not None
        least_gap = BASELINE_GAP if tally.share < 1.0 else 0.0
        options = SearchOptions(
            seed=self.options.seed,
            time_limit_s=self._remaining_s(),
            gap_tolerance=max(self.options.gap_tolerance, least_gap, ROUGH_GAP if rough else 0.0),
            cutoff_s=cutoff_s,
            closing=ROUGH_WORK if rough else REFINED_WORK,
            max_evaluations=round(tally.share * MAX_EVALUATIONS) if kind.relaxes else None,
            progress=None if self.report is None else lambda _cost, _bound: self._tell(),
        )
        result = _SEARCHERS[kind.searcher](problem, options)
        tally.evaluations += result.evaluations
        self._tell()
        return result

    def _tell(self) -> bool:
        """Tell of the best strategy so far: a problem's cost is none, as it may exceed the memory. Whether to go on."""
        if self.report is not None and not self.stopped and not is_child():
            self.stopped = not self.report(self._cutoff)
        return not self.stopped

    @property
    def _cutoff(self) -> float:
        return INFINITE if self.best is None else self.best.costs.step_time_s

    def _keep(self, candidate: Candidate | None) -> None:
        if candidate is not None and candidate.costs.step_time_s < self._cutoff * (1 - ROUNDING):
            self.best = candidate
            self._tell()


def _recomputes(problems: LayoutProblems, options: PlanOptions) -> tuple[bool, ...]:
    """Whether blocks are recomputed: what is tried, one after the other; raises ``InfeasibleError``."""
    if options.recompute == 0:
        return (False,)
    if options.recompute:
        if not problems.blocks:
            raise InfeasibleError("recompute", options.recompute, None, "the model has no repeated blocks")
        return (True,)
    return (False, True) if problems.blocks else (False,)


def _same_costs(one: SearchProblem, other: SearchProblem) -> bool:
    """Whether two problems over the same layouts differ in nothing."""
    if [len(costs) for costs in one.unary_s] != [len(costs) for costs in other.unary_s]:
        return False
    pairs = {(id(a), id(b)): (a, b) for a, b in zip(one.unary_s, other.unary_s, strict=True)}
    uses = {(id(a), id(b)): (a, b) for a, b in zip(one.memory_bytes, other.memory_bytes, strict=True)}
    return all(np.array_equal(*pair) for pair in (*pairs.values(), *uses.values()))


def nearer(known: InfeasibleError | None, new: InfeasibleError) -> InfeasibleError:
    """The more useful of two failures: memory before batch, then the one that needs less."""
    if known is None or (known.constraint == "micro_batch" and new.constraint != "micro_batch"):
        return new
    if (
        new.constraint == known.constraint
        and new.needed is not None
        and (known.needed is None or new.needed < known.needed)
    ):
        return new
    return known
