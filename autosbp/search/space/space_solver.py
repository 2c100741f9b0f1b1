"""One space after another: its problem built and solved, with and without the memory limit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from autosbp.errors import InfeasibleError
from autosbp.plan import Strategy
from autosbp.search import SEARCHERS, SearchOptions, SearchProblem, SearchResult
from autosbp.search.problem.weights import CHEAPEST, FASTEST, STEP, USE
from autosbp.search.searchers.tied import tied
from autosbp.search.space.apart import Apart
from autosbp.search.space.candidate import Candidate, Tried
from autosbp.search.space.costing import CERTAIN, INFINITE
from autosbp.search.space.leaner import quickest_with_room
from autosbp.search.space.micro_batches import micro_batches
from autosbp.search.space.tally import Tally, nearer
from autosbp.search.stages.layouts import Exposure, Layouts, Space, SpaceKey, Structure

MAX_EVALUATIONS = 100_000_000
"""Costed values at which one exact search stops. Counts, unlike clocks, are the same on every machine, so plans are too."""
TIGHTENINGS = 4
"""Searches of one space, each under a lower limit, until what is found fits at its fullest moment."""
BASELINE_GAP = 0.02
"""Where memory binds, what another tool would do is searched to this gap."""
ROUGH_GAP, ROUGH_WORK = 0.05, 0.05
"""Where memory binds, every space is searched to this gap, with a part of the work that closing it may take, before any is
searched to the one asked for."""
LITTLE = 1e-3
"""Of the memory limit: what another way to store parameters has to save to be worth a search of its own."""
BOUNDED = 1e-9
"""Relative: a bound that is so near to the best known leaves nothing to look for."""
REFINED, REFINED_WORK = 2, 0.1
"""Then so many are, with more of that work."""
_SEARCHERS = {**SEARCHERS, "tied": tied}


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
        return self.searcher in ("auto", "exact", "exhaustive", "tied")


@dataclass(frozen=True)
class Optimum:
    """The quickest layouts of a space without the memory limit, as a strategy, and what they cost."""

    cost_s: float
    strategy: Strategy


@dataclass(frozen=True)
class Free:
    """What the quickest layouts of a space take without the memory limit, where that is less than the best known."""

    cost_s: float
    memory_bytes: int


class SpaceSolver(Apart):
    """Solves spaces, and makes strategies of what it finds. ``_relaxations`` are bounds of problems of spaces, and the prices
    of memory that give them; ``_free`` is of spaces that were solved without its limit."""

    exposure: Exposure | None = None
    _relaxations: dict[SpaceKey, tuple[float, float]]
    _free: dict[SpaceKey, Free]

    def micro_batches(self, stages: int) -> list[int]:
        """Microbatch sizes to try, largest first."""
        options, devices = self.options, self.problems.network.cluster.num_devices
        return list(micro_batches(self.problems.global_batch, stages, devices, options.schedules, options.micro_batch))

    def _space(self, structure: Structure, micro_batch: int, storage: str) -> Space:
        """With what is recomputed anyway. Where parameters are gathered for each use all counts: what is beside passes there,
        again and again, is most of what tells layouts apart, and problems prove no bound (``_is_charged``)."""
        own = (self.exposure if structure.stages == 1 else None) or Exposure()
        exposure = Exposure(whole=True) if storage == USE else own
        return Space(structure, micro_batch, storage, self.recomputes[0], exposure)

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
        seen: list[tuple[Layouts, bool]] = []  # and whether a strategy was found that fits
        for storage in kind.storages:
            try:
                layouts = self._built(self._space(structure, size, storage), kind, limit or self.limit)
                if not any(self._is_no_better(layouts, *other) for other in seen):
                    seen.append((layouts, False))
                    self._keep(self._limited(layouts.space, kind, tally, self._cutoff, limit, leans=len(seen) == 1))
                    seen[-1] = layouts, True
            except InfeasibleError as error:
                self.problem = nearer(self.problem, error)

    def _is_no_better(self, layouts: Layouts, known: Layouts, fits: bool) -> bool:
        """Whether layouts with parameters stored in another way take no fewer seconds, and the bytes that they save are worth
        nothing: few where those known fit, or at the price that proves that these are not better than the best."""
        saved = _saved_bytes(layouts.problem, known.problem)
        if saved is None or saved <= (LITTLE * self.limit if fits else 0.0):
            return saved is not None
        bound_s, price = self._relaxations.get(known.space.key, (-INFINITE, 0.0))
        cutoff_s = self._cutoff * self._spare(known.space)
        return bound_s - price * saved >= cutoff_s * (1 - BOUNDED)

    def _free_s(self, space: Space) -> float:
        """What no strategy of a space takes less than, nor any of smaller microbatches, where that is known without the memory
        limit."""
        bound_s, price = self._relaxations.get(space.key, (-INFINITE, 0.0))
        return min(bound_s * self._working(space), self._cutoff) if price == 0.0 else -INFINITE  # of what was left out

    def _within_limit(self, space: Space, kind: Kind, tally: Tally) -> Candidate:
        """The best strategy of a space under the limit, with recomputation where there is none without."""
        for again in self.recomputes[:-1]:
            with suppress(InfeasibleError):
                return self._limited(replace(space, again=again), kind, tally, INFINITE)
        return self._limited(replace(space, again=self.recomputes[-1]), kind, tally, INFINITE)

    def _blocks_s(self, layouts: Layouts, kind: Kind, tally: Tally) -> float:
        """What the blocks of the fullest stage make of the cost; -inf where that may take less while other stages wait."""
        if self.problems.is_shared and layouts.space.stages > 1:
            return -INFINITE

        def least(problem: SearchProblem) -> float:
            return self._search(problem, kind, tally, INFINITE).lower_bound_s

        return self.problems.whole_blocks(layouts, least)

    def _working(self, space: Space) -> float:
        """The part of a step that no stage waits for others."""
        count = self.problems.num_micro(space)
        return count / (count + self.problems.waits(space.stages, count))

    def _fits_at_once(self, space: Space, limit: int) -> bool:
        """Whether the least memory of the first way to store parameters fits: that problem is built anyway."""
        try:
            return self.problems.least_memory(space) <= limit
        except InfeasibleError:
            return False

    def _relaxed(self, space: Space, kind: Kind, tally: Tally) -> tuple[float, Free | None, Optimum | None]:
        """A bound on the space of one set of devices; what its optimum takes, where that is less than the best known; and
        itself, where it may fit then."""
        layouts = self._built(space, kind)
        result = self._solve(layouts, kind, tally, INFINITE)
        bound_s = min(result.lower_bound_s, self._cutoff)  # of what was left out
        free = Free(result.cost_s, result.memory_bytes) if result.cost_s < self._cutoff else None
        if result.memory_bytes > self.limit or (free is None and not kind.pinned):
            return bound_s, free, None
        return bound_s, free, Optimum(result.cost_s, self.problems.strategy(layouts, result.assignment))

    def _built(self, space: Space, kind: Kind, limit: int | None = None) -> Layouts:
        """The problem of a space, less layouts that no strategy has that is better than the best known."""
        return self.problems.build(space, limit, cutoff_s=self._cutoff_of(space, kind))

    def _cutoff_of(self, space: Space, kind: Kind) -> float:
        """The cost in its problem that strategies better than the best known do not exceed."""
        if space.storage == USE or not self._is_charged(kind):
            return INFINITE
        return self._cutoff * self._spare(space) / self._working(space)

    def _is_charged(self, kind: Kind) -> bool:
        """Whether problems charge no more than strategies cost. They may for parameters that are gathered for each use, or
        pinned apart from it, which share messages."""
        return kind.relaxes and not kind.pinned and kind.storages[0] != USE

    def _limited(
        self,
        space: Space,
        kind: Kind,
        tally: Tally,
        cutoff_s: float,
        first: int | None = None,
        *,
        leans: bool = False,
    ) -> Candidate:
        """The best strategy found under the memory limit; raises ``InfeasibleError``.

        Search adds memory up by op. What the strategy takes at its fullest moment is known once it is there: where that
        exceeds the limit, search begins anew with twice as much less, so that it is seldom repeated; where a slower schedule
        fits, too, for leaner layouts with the quickest one. Of a pipeline it ``leans`` at first: ``_leaner``."""
        limit, needed = first or self.limit, 0
        best: Candidate | None = None
        cutoff_s *= self._spare(space)
        for _ in range(TIGHTENINGS):
            try:
                layouts = self._built(space, kind, limit)
                result = self._solve(layouts, kind, tally, cutoff_s)
            except InfeasibleError:
                if limit == self.limit and best is None:
                    raise
                break
            if limit == (first or self.limit) and result.certificate is not None:
                self._relaxations[space.key] = result.certificate.relaxed_bound_s, result.certificate.price_s_per_byte
            if self._rough is not None and result.gap > self.options.gap_tolerance:
                self._rough[space.key] = min(result.lower_bound_s, self._rough.get(space.key, INFINITE))
            if result.cost_s >= CERTAIN * cutoff_s:
                break
            candidates = list(self._candidates(layouts, result))
            best = self._fits([*candidates, *([] if best is None else [best])])
            if best is not None:
                cutoff_s = min(cutoff_s, best.costs.step_time_s * self._spare(space))
            if not candidates or not self._promises(candidates, best):
                break
            leaner = self._leaner(layouts, candidates[0], kind, tally) if leans else None
            leans = False
            if leaner is not None:
                return self._fits([leaner, *([] if best is None else [best])]) or leaner
            needed = min(candidate.memory_bytes for candidate in candidates)
            if self._out_of_time() and cutoff_s < INFINITE:
                break
            limit = self._tighter(limit, result, candidates)
        if best is not None:
            return best
        detail = f"what search found at a microbatch of {space.micro_batch} takes more at its fullest moment"
        raise InfeasibleError("memory_limit_bytes", self.limit, needed, detail)

    def begin_roughly(self) -> None:
        """Search to ``ROUGH_GAP`` under memory limits until ``refine``."""
        self._rough = {}

    def refine(self, structures: Sequence[Structure], kind: Kind, tally: Tally, spent: Callable[[], bool]) -> None:
        """Once more, as closely as is asked for, what rough searches of these left open: where the most may be found first."""
        rough, self._rough = self._rough or {}, None
        of = {structure.key: structure for structure in structures}
        spaces = [(bound, Space(of[key[0]], *key[1:])) for key, bound in rough.items()]

        def is_open(entry: tuple[float, Space]) -> bool:
            return not spent() and entry[0] < self._cutoff * self._spare(entry[1])

        def look(entry: tuple[float, Space], tally: Tally) -> None:
            try:
                self._keep(self._limited(entry[1], kind, tally, self._cutoff))
            except InfeasibleError as error:
                self.problem = nearer(self.problem, error)

        nearest = sorted(spaces, key=lambda entry: entry[0])[:REFINED]
        for _ in self._in_rounds(nearest, is_open, look, tally):
            pass

    def _leaner(self, layouts: Layouts, first: Tried, kind: Kind, tally: Tally) -> Candidate | None:
        """A pipeline with the schedule of one that does not fit, in leaner layouts (``space.leaner``); of baselines none."""
        pipeline, found = first.strategy.pipeline, list[Tried]()
        if pipeline is None or layouts.space.again or not kind.proves:
            return None

        def is_too_large(result: SearchResult) -> bool:
            if self._out_of_time():
                return False
            tried = next(iter(self._candidates(layouts, result, (pipeline.schedule.name,))), None)
            found.extend([] if tried is None else [tried])
            # One that is too slow is none: so are all that are leaner.
            return isinstance(tried, Candidate) and not self.has_room(tried)

        quickest_with_room(layouts.problem, lambda problem: self._search(problem, kind, tally, INFINITE), is_too_large)
        return self._fits(found)

    def _promises(self, candidates: Sequence[Tried], best: Candidate | None) -> bool:
        """Whether the quickest of these by estimate does not fit, and would be better than the best."""
        first = candidates[0]
        if not isinstance(first, Candidate) or self.has_room(first):
            return best is None
        return best is None or first.costs.step_time_s * CERTAIN < best.costs.step_time_s

    def _tighter(self, limit: int, result: SearchResult, candidates: Sequence[Tried]) -> int:
        """For the quickest of these by estimate, where that is known to be one that fits less than others."""
        needed = candidates[0].memory_bytes
        return min(limit, result.memory_bytes) - 2 * (needed - self.limit)

    def _solve(
        self, layouts: Layouts, kind: Kind, tally: Tally, cutoff_s: float, *, roughly: bool = False
    ) -> SearchResult:
        return self._search(layouts.problem, kind, tally, cutoff_s, roughly=roughly)

    def _search(
        self, problem: SearchProblem, kind: Kind, tally: Tally, cutoff_s: float, *, roughly: bool = False
    ) -> SearchResult:
        """``roughly``: a bound and an assignment near to it are enough."""
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
            rough=roughly,
            progress=None if self.report is None else lambda _cost, _bound: self._tell(),
        )
        result = _SEARCHERS[kind.searcher](problem, options)
        tally.evaluations += result.evaluations
        self._tell()
        return result


def _saved_bytes(problem: SearchProblem, known: SearchProblem) -> float | None:
    """The most bytes that an assignment takes less than in another problem over the same layouts, which has fewer seconds, or
    as many, for each value; None where it has not, or has other layouts."""
    if [len(costs) for costs in problem.unary_s] != [len(costs) for costs in known.unary_s]:
        return None
    most: dict[tuple[int, ...], float] = {}
    saved = 0.0
    for own, other, use, before in zip(
        problem.unary_s, known.unary_s, problem.memory_bytes, known.memory_bytes, strict=True
    ):
        key = id(own), id(other), id(use), id(before)
        if key not in most:
            if (own < other).any():
                return None
            most[key] = float(np.max(before - use, initial=0))
        saved += most[key]
    return saved
