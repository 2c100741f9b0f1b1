"""The best strategy over many structures (stages and views), with a bound that no strategy of theirs is below.

Each structure is first solved without the memory limit at the largest microbatch that can fit. That bounds it, smaller
microbatches included: they pay the same work and bytes with more latencies. Structures whose bound is below the best plan
so far are then searched under the memory limit, lowest bound first. Without a pipeline, an optimum that fits is the
structure's answer. With one, fewer samples a microbatch mean shorter waits and more latencies: microbatches are taken
from about a tenth of waiting on, as long as they get better.

A pipeline of p stages and m microbatches takes no less than m / p times a microbatch on one stage's devices with 1 / p of
what happens once a step: the average of what each stage does itself. Problems count waiting, too, (m + p - 1) / p, so
their optimum times m / (m + p - 1) is a bound.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

import numpy as np

from autosbp.cluster import prime_factors
from autosbp.costmodel.deliveries import LinkModel
from autosbp.costmodel.evaluate import evaluate
from autosbp.costmodel.memory import state_bytes_per_element
from autosbp.errors import InfeasibleError
from autosbp.graph.ir import LogicalGraph
from autosbp.pipeline import ONE_F_ONE_B
from autosbp.plan import Costs, Strategy
from autosbp.sbp.boxing import split_factor
from autosbp.search import SEARCHERS, SearchOptions, SearchProblem, SearchResult
from autosbp.search._layouts import LayoutProblems, Layouts, Space, Structure
from autosbp.search._pipelines import pipelines
from autosbp.search._tied import tied
from autosbp.search._weights import CHEAPEST, FASTEST, STEP, USE
from autosbp.search.plan_options import PlanOptions

MAX_EVALUATIONS = 100_000_000
ENOUGH_EVALUATIONS = 40_000_000
"""Costed values at which one exact search stops, and after which no further search under a binding memory limit begins.
Counts, unlike clocks, are the same on every machine, so plans are too."""
TIGHTENINGS = 4
"""Searches of one space, each under a lower limit, until what is found fits at its fullest moment."""
BASELINE_GAP = 0.02
"""Where memory binds, what another tool would do is searched to this gap."""
WAITING = 0.1
"""The part of a step that stages may wait for others at the microbatch that is tried first."""
WORSE = 1.01
"""A microbatch that takes so many times what a neighbour does ends the walk in its direction."""
CERTAIN = 1.01
"""A pipeline whose estimate is so many times what the best takes is not looked into."""
HOPE = 0.85
"""Where no bound is wanted, no microbatch is expected to take less than so much of what the first one tried does."""
ROUNDING = 1e-12
"""Of two strategies that differ by so little the first found stays."""
INFINITE = float("inf")
_SEARCHERS = {**SEARCHERS, "tied": tied}


@dataclass(frozen=True)
class Candidate:
    strategy: Strategy
    costs: Costs


@dataclass
class Tally:
    """What the searches of one plan add up to. ``share`` is the part of a whole search that one of them may take."""

    share: float = 1.0
    evaluations: int = 0
    bounds: list[float] = field(default_factory=list)


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


@dataclass(frozen=True)
class Solved:
    """A space without the memory limit."""

    layouts: Layouts
    result: SearchResult
    bound_s: float
    estimate_s: float


@dataclass
class Walk:
    """The microbatches of a pipelined structure, from ``first`` on. ``bound`` is of all of them, ``solved`` by index."""

    structure: Structure
    sizes: list[int]
    first: int = 0
    start: int = 0
    bound: float = 0.0
    solved: dict[int, Solved] = field(default_factory=dict)


class Best:
    """See the module's docstring.

    Args:
        limit: bytes per device.
        deadline: of ``time.monotonic``; work that has begun ends a little later.
        report: called with the best step time so far; stops the search when it returns False.
    """

    def __init__(
        self,
        problems: LayoutProblems,
        options: PlanOptions,
        limit: int,
        deadline: float,
        report: Callable[[float], bool] | None,
    ) -> None:
        self.problems, self.options, self.limit, self.deadline = problems, options, limit, deadline
        self.report = report
        self.links = LinkModel(problems.network, problems.compute.copy_bytes_per_s)
        self.best: Candidate | None = None
        self.problem: InfeasibleError | None = None

    def over(
        self, structures: Iterable[Structure], kind: Kind, tally: Tally, best: Candidate | None = None
    ) -> Candidate:
        """The best strategy over these structures, at least as good as ``best``; raises ``InfeasibleError``."""
        self.best, self.problem = best, None
        walks: list[tuple[bool, float, int, Walk]] = []
        single: list[Structure] = []
        for order, structure in enumerate(structures):
            if structure.stages == 1 or not kind.relaxes:
                single.append(structure)
                continue
            try:
                walk = self._walk(structure, kind, tally)
            except InfeasibleError as error:
                self.problem = nearer(self.problem, error)
                continue
            found = walk.solved[walk.start]
            walks.append((found.result.memory_bytes > self.limit, found.estimate_s, order, walk))
        begun = tally.evaluations

        def spent() -> bool:
            return self.best is not None and (tally.evaluations - begun >= ENOUGH_EVALUATIONS or self._out_of_time())

        # Pipelines first: where memory binds, they are the quickest to fit, and what they reach cuts the others short.
        for _, _, _, walk in sorted(walks, key=lambda entry: entry[:3]):
            tally.bounds.append(walk.bound if spent() else self._pipelined_sizes(walk, kind, tally))
        opened: list[tuple[float, int, int, Structure]] = []
        for order, structure in enumerate(single):
            try:
                bound = self._largest(structure, kind, tally) if walks and kind.relaxes else -INFINITE
                if bound >= self._cutoff:
                    tally.bounds.append(bound)
                    continue
                first = self._first(structure, kind)
                left = self._begin(structure, first, kind, tally)
                if left is not None:
                    opened.append((left, order, first, structure))
            except InfeasibleError as error:
                self.problem = nearer(self.problem, error)
        for bound, _, first, structure in sorted(opened, key=lambda entry: entry[:2]):
            tally.bounds.append(bound)
            if bound < self._cutoff and not spent():
                self._limited_sizes(structure, first, bound, kind, tally)
        if self.best is None:
            batch = self.problems.global_batch
            raise self.problem or InfeasibleError("global_batch", batch, None, "no microbatch splits evenly")
        return self.best

    def micro_batches(self, stages: int) -> list[int]:
        """Microbatch sizes to try, largest first: the one asked for, or some divisors; enough of them to fill the stages."""
        whole = self.problems.global_batch
        if self.options.micro_batch is not None:
            size = self.options.micro_batch
            return [size] if whole // size >= stages else []
        return [size for size in self._sizes if whole // size >= stages]

    @cached_property
    def _sizes(self) -> list[int]:
        """From the whole batch on, less one prime factor at a time: first those that no split over devices can use, then the
        greatest."""
        size, devices = self.problems.global_batch, self.problems.network.cluster.num_devices
        factors = sorted(prime_factors(size), key=lambda prime: (devices % prime == 0, -prime))
        sizes = [size]
        for prime in factors:
            size //= prime
            sizes.append(size)
        return sizes

    def _first(self, structure: Structure, kind: Kind, limit: int | None = None) -> int:
        """Index of the largest microbatch that could fit, by bisection: memory falls and even splits get fewer with the
        microbatch. Raises ``InfeasibleError`` when none could."""
        sizes, limit = self.micro_batches(structure.stages), limit or self.limit
        storage = CHEAPEST if len(kind.storages) > 1 else kind.storages[0]
        low, high, first = 0, len(sizes) - 1, -1
        problem: InfeasibleError | None = None
        while low <= high:
            middle = (low + high) // 2
            try:
                least = self.problems.least_memory(Space(structure, sizes[middle], storage))
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

    def _largest(self, structure: Structure, kind: Kind, tally: Tally) -> float:
        """A bound on a structure: its largest microbatch that splits evenly, without the memory limit; of repeated blocks
        alone, where there are any."""
        sizes = self.micro_batches(structure.stages)
        for size in sizes[:-1]:
            try:
                layouts = self.problems.build(Space(structure, size, kind.storages[0]), None)
            except InfeasibleError:
                continue
            bound = self._blocks_s(layouts, kind, tally)
            if bound == -INFINITE:
                bound = self._solve(layouts, kind, tally, INFINITE).lower_bound_s
            return bound * self._working(layouts.space)
        return -INFINITE

    def _begin(self, structure: Structure, first: int, kind: Kind, tally: Tally) -> float | None:
        """A bound on what is open of a structure; None where nothing is."""
        space = Space(structure, self.micro_batches(structure.stages)[first], kind.storages[0])
        if not kind.relaxes:
            self._keep(self._limited(space, kind, tally, INFINITE))
            tally.bounds.append(-INFINITE)
            return None
        bound, candidate = self._relaxed(space, kind, tally)
        if candidate is not None:
            tally.bounds.append(bound)
            self._keep(candidate)
            return None
        return bound

    def _limited_sizes(self, structure: Structure, first: int, bound: float, kind: Kind, tally: Tally) -> None:
        """One set of devices, under the memory limit: from a microbatch that leaves room to choose, to the largest."""
        sizes = self.micro_batches(1)
        try:
            roomy = self._first(structure, kind, self.limit // 2)
        except InfeasibleError:
            roomy = first
        for size in [*reversed(sizes[first : roomy + 1]), *sizes[roomy + 1 :]]:
            before = self._cutoff
            if bound >= before or (self.best is not None and self._out_of_time()):
                return
            self._try(structure, size, kind, tally)
            found = self.best is not None and self._cutoff < before
            if found or (self.best is not None and bound >= self._cutoff):
                return  # smaller steps of the same way help no more

    def _try(self, structure: Structure, size: int, kind: Kind, tally: Tally, limit: int | None = None) -> None:
        """Every way to store parameters that differs from those before it; ``limit`` is where the first begins."""
        seen: list[SearchProblem] = []
        for storage in kind.storages:
            try:
                layouts = self.problems.build(Space(structure, size, storage), limit or self.limit)
                if not any(_same_costs(layouts.problem, other) for other in seen):
                    seen.append(layouts.problem)
                    self._keep(self._limited(layouts.space, kind, tally, self._cutoff, limit))
            except InfeasibleError as error:
                self.problem = nearer(self.problem, error)

    def _walk(self, structure: Structure, kind: Kind, tally: Tally) -> Walk:
        """Microbatches of a pipeline, solved at one with little waiting, or the next larger one that splits evenly; and,
        where bounds are wanted, its blocks at the largest, which bound all. Raises ``InfeasibleError`` where there is none."""
        sizes, whole, waits = self.micro_batches(structure.stages), self.problems.global_batch, structure.stages - 1
        walk = Walk(structure, sizes)
        walk.bound = max(0.0, self._largest(structure, kind, tally)) if kind.proves else 0.0
        start = next((at for at in range(len(sizes)) if waits * sizes[at] <= WAITING * whole), len(sizes) - 1)
        for at in range(start, walk.first - 1, -1):
            try:
                self._solved(walk, at, kind, tally)
            except InfeasibleError as error:
                self.problem = nearer(self.problem, error)
                continue
            walk.start = at
            if not kind.proves:
                walk.bound = HOPE * walk.solved[at].estimate_s
            return walk
        raise self.problem or InfeasibleError("micro_batch", sizes[-1], None, "no microbatch splits evenly")

    def _solved(self, walk: Walk, at: int, kind: Kind, tally: Tally) -> Solved:
        """A space without the memory limit; raises ``InfeasibleError``."""
        if at not in walk.solved:
            layouts = self.problems.build(Space(walk.structure, walk.sizes[at], kind.storages[0]), None)
            result = self._solve(layouts, kind, tally, INFINITE)
            bound, blocks_s = self._bound(layouts, result, kind, tally)
            walk.solved[at] = Solved(layouts, result, bound, max(result.cost_s, blocks_s))
        return walk.solved[at]

    def _bound(self, layouts: Layouts, result: SearchResult, kind: Kind, tally: Tally) -> tuple[float, float]:
        """Of a space, from its problem without the memory limit; and what whole blocks a stage make of its cost."""

        blocks_s = self._blocks_s(layouts, kind, tally) if layouts.space.stages > 1 else -INFINITE
        return max(result.lower_bound_s, blocks_s) * self._working(layouts.space), blocks_s

    def _blocks_s(self, layouts: Layouts, kind: Kind, tally: Tally) -> float:
        """What the blocks of the fullest stage make of the cost."""

        def least(problem: SearchProblem) -> float:
            return self._search(problem, kind, tally, INFINITE).lower_bound_s

        return self.problems.whole_blocks(layouts, least)

    def _pipelined_sizes(self, walk: Walk, kind: Kind, tally: Tally) -> float:
        """Smaller microbatches first, then larger ones, as long as they get better; a bound over all."""
        bounds = []
        whole, waits = self.problems.global_batch, walk.structure.stages - 1
        work = walk.bound
        least = INFINITE
        for at in range(walk.start, len(walk.sizes)):
            if work >= self._cutoff or self._out_of_time():
                bounds.append(work)
                break
            # Smaller microbatches have no less to do than this one.
            work, estimate = self._pipelined(walk, at, kind, tally)
            bounds.append(work)
            if estimate > WORSE * least:
                break
            least = min(least, estimate)
        least = INFINITE
        for at in range(walk.start - 1, walk.first - 1, -1):
            # What larger microbatches save is in the walk's bound; how long stages wait is known.
            bound = walk.bound * (1 + waits * walk.sizes[at] / whole)
            worse = False
            if bound < self._cutoff and not self._out_of_time():
                bound, estimate = self._pipelined(walk, at, kind, tally)
                worse, least = estimate > WORSE * least, min(least, estimate)
            else:
                worse = True
            bounds.append(bound)
            if worse:
                if at > walk.first:
                    bounds.append(walk.bound * (1 + waits * walk.sizes[at - 1] / whole))
                break
        return max(walk.bound, min(bounds, default=walk.bound))

    def _pipelined(self, walk: Walk, at: int, kind: Kind, tally: Tally) -> tuple[float, float]:
        """A bound of a space, and about what the best strategy in it takes."""
        try:
            solved = self._solved(walk, at, kind, tally)
        except InfeasibleError as error:
            self.problem = nearer(self.problem, error)
            return INFINITE, INFINITE
        layouts, result = solved.layouts, solved.result
        bound, estimate = solved.bound_s, solved.estimate_s
        if bound >= self._cutoff or result.cost_s >= CERTAIN * self._cutoff:
            return bound, estimate
        limit = self.limit
        if result.memory_bytes <= self.limit:
            candidates = list(self._candidates(layouts, result))
            fitting = self._fits(candidates)
            if fitting is not None or not candidates:
                self._keep(fitting)
                return bound, estimate
            limit = self._tighter(limit, result, candidates)
        self._try(walk.structure, layouts.space.micro_batch, kind, tally, limit)
        return bound, estimate

    def _working(self, space: Space) -> float:
        """The part of a step that no stage waits for others."""
        count = self.problems.num_micro(space)
        return count / (count + space.stages - 1)

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
        for _ in range(TIGHTENINGS):
            try:
                layouts = self.problems.build(space, limit)
                result = self._solve(layouts, kind, tally, cutoff_s)
            except InfeasibleError:
                if limit == self.limit:
                    raise
                break
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

    def _tighter(self, limit: int, result: SearchResult, candidates: Sequence[Candidate]) -> int:
        needed = min(candidate.costs.memory_bytes_per_device for candidate in candidates)
        return min(limit, result.memory_bytes) - 2 * (needed - self.limit)

    def _fits(self, candidates: Iterable[Candidate]) -> Candidate | None:
        """The quickest of those that fit."""
        fitting = [each for each in candidates if each.costs.memory_bytes_per_device <= self.limit]
        return min(fitting, key=lambda each: each.costs.step_time_s, default=None)

    def _fitting(self, layouts: Layouts, result: SearchResult) -> Candidate | None:
        return self._fits(self._candidates(layouts, result))

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
                for each in pipelines(graph, variant, seconds, space.stages, self.links, kinds, problems.starts)
            ]
            found = _shortlist(found)
        for estimate, each in found:
            if estimate >= CERTAIN * self._cutoff:
                return
            candidate = Candidate(each, evaluate(graph, each, boxing, problems.compute))
            yield candidate
            if candidate.costs.memory_bytes_per_device <= self.limit:
                return

    def _state_bytes(self, graph: LogicalGraph, strategy: Strategy) -> float:
        """Parameters, gradients and optimizer state of all stages, per device of one."""
        return sum(
            prod(leaf.meta.sizes) / split_factor(strategy.parameters[leaf.name], strategy.mesh)
            * state_bytes_per_element(leaf.meta, strategy.optimizer)
            for leaf in graph.trained
        )  # fmt: skip

    def _solve(self, layouts: Layouts, kind: Kind, tally: Tally, cutoff_s: float) -> SearchResult:
        return self._search(layouts.problem, kind, tally, cutoff_s)

    def _search(self, problem: SearchProblem, kind: Kind, tally: Tally, cutoff_s: float) -> SearchResult:
        tolerance = max(self.options.gap_tolerance, BASELINE_GAP if tally.share < 1.0 else 0.0)
        options = SearchOptions(
            seed=self.options.seed,
            time_limit_s=self._remaining_s(),
            gap_tolerance=tolerance,
            cutoff_s=cutoff_s,
            max_evaluations=round(tally.share * MAX_EVALUATIONS) if kind.relaxes else None,
            progress=self._progress(),
        )
        result = _SEARCHERS[kind.searcher](problem, options)
        tally.evaluations += result.evaluations
        return result

    def _progress(self) -> Callable[[float, float], bool] | None:
        report = self.report
        return None if report is None else lambda best, _: report(best)

    @property
    def _cutoff(self) -> float:
        return INFINITE if self.best is None else self.best.costs.step_time_s

    def _keep(self, candidate: Candidate | None) -> None:
        if candidate is not None and candidate.costs.step_time_s < self._cutoff * (1 - ROUNDING):
            self.best = candidate

    def _out_of_time(self) -> bool:
        return time.monotonic() >= self.deadline

    def _remaining_s(self) -> float:
        """What is left for one more search; a little, always, so that there is an answer."""
        return max(self.deadline - time.monotonic(), 0.1 * self.options.time_limit_s)


def _shortlist(found: list[tuple[float, Strategy]]) -> list[tuple[float, Strategy]]:
    """The quickest by estimate, then, should that not fit in memory, the quickest stored apart, and 1F1B, which keeps
    least."""
    ranked = sorted(found, key=lambda entry: entry[0])
    if not ranked:
        return []
    apart = [entry for entry in ranked if entry[1].parameters == found[0][1].parameters]
    lean = [entry for entry in apart if entry[1].pipeline is not None and entry[1].pipeline.schedule == ONE_F_ONE_B]
    chosen: list[tuple[float, Strategy]] = []
    for entry in (ranked[0], *apart[:2], *lean[:1]):
        if not any(entry is other for other in chosen):
            chosen.append(entry)
    return chosen


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
