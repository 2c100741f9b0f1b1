"""Structures without a pipeline, looked at for the first time: a bound of each, and its optimum without the memory limit.

None needs another before an optimum is costed, so that two cores share them. The quickest is costed first: mostly it cuts
the others short. Its step may be longer than its problem's cost, as more is exposed there than the problem's multipliers tell:
other multipliers raise the bound, and lead to other optima, which are costed, too (``space.exposures``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from autosbp.costmodel.timeline import Timeline
from autosbp.errors import InfeasibleError
from autosbp.handed import handed_over
from autosbp.plan import Strategy
from autosbp.search.space.costing import INFINITE
from autosbp.search.space.exposures import Plane, Planes, plane_of
from autosbp.search.space.recomputing import Recomputing
from autosbp.search.space.space_solver import Free, Kind, Optimum
from autosbp.search.space.tally import Tally, nearer
from autosbp.search.space.timed import OutOfTimeError
from autosbp.search.stages.layouts import Exposure, Space, Structure

ASCENTS, FINER_ASCENTS = 6, 2
"""Multipliers that are tried of the first structure, and of others. Views that tell more axes apart than the first one hold its
strategies, too, so that their bounds are no higher at any multipliers, and mostly the best ones are the same."""
WHOLE = Exposure(whole=True)
PROPOSALS = (Exposure(0.0, 0.0, 0.0), Exposure(0.5, 0.5), Exposure(1.0, 1.0))
"""What is tried of all structures, and of the first one, once other multipliers raise the bound no more."""
ALL = Exposure(1.0, 1.0)
"""Of a pass that messages run beside nothing counts, and all of these."""
RISES = 1e-3
"""Relative: what a bound may rise by at the most to be worth another try."""
NEARLY = 1.05
"""Times the bound of a structure: what takes no longer is a good strategy to begin with."""

handed_over(Optimum)
handed_over(Free)


@handed_over
@dataclass(frozen=True)
class Look:
    """A ``bound`` on a structure, infinite where nothing is in it, minus infinite where time was over; the largest microbatch
    that can fit, by its index, None where none can without recomputation; the optimum there, if it may be better than the best
    known, and what it takes, whether it may fit or not; why nothing fits; and what searches add up to."""

    bound: float
    first: int | None
    optimum: Optimum | None
    failure: InfeasibleError | None
    tally: Tally
    free: Free | None = None


@dataclass(frozen=True)
class Opened:
    """A structure that may hold something better than the best known: its bound, and ``first`` as ``Look`` has it."""

    bound: float
    first: int | None
    structure: Structure


class Opening(Recomputing):
    """See the module's docstring. ``largest_bounds``: no microbatch takes less of a sample than the largest one. ``exposure``:
    multipliers with which structures without a pipeline are looked at, the best of the one before; None of the first."""

    largest_bounds = True
    _floors: dict[Hashable, float]

    def _opened(self, structures: Sequence[Structure], kind: Kind, tally: Tally) -> list[Opened]:
        """Those that are left open, once all were looked at; optima that fit are kept."""
        if not kind.relaxes:
            self._search_first(structures, kind, tally)
            return []
        return self._left_open(structures, self._spread(self._looks(structures, kind, tally)), kind, tally)

    def _looks(self, structures: Sequence[Structure], kind: Kind, tally: Tally) -> list[Callable[[], Look]]:
        """What tells of each of them. None needs another."""
        return [partial(self._look, structure, kind, tally.share) for structure in structures]

    def _left_open(
        self, structures: Sequence[Structure], looks: Sequence[Look], kind: Kind, tally: Tally
    ) -> list[Opened]:
        """Those that are left open by these looks; optima that fit are kept."""
        left = []
        for structure, look in sorted(zip(structures, looks, strict=True), key=_quickest_first):
            tally.add(look.tally)
            if look.failure is not None:
                self.problem = nearer(self.problem, look.failure)
            self._raise_floor(structure, look.bound)
            if look.free is not None and look.first is not None:
                size = self.micro_batches(structure.stages)[look.first]
                self._free[self._space(structure, size, kind.storages[0]).key] = look.free
            fits = self._optimum_fits(structure, look, kind)
            bound = self._raised_bound(structure, look, kind, tally)
            if fits or INFINITE > bound >= self._cutoff:
                tally.bounds.append(bound)
            elif bound < INFINITE:
                left.append(Opened(bound, look.first, structure))
        if any(each.bound == -INFINITE for each in left):
            self.require_time()
        return left

    def _search_first(self, structures: Sequence[Structure], kind: Kind, tally: Tally) -> None:
        """By a searcher that proves nothing: under the memory limit, at the largest microbatch that can fit."""
        for structure in structures:
            self.require_time()
            try:
                size = self.micro_batches(structure.stages)[self._first(structure, kind)]
                self._keep(self._within_limit(self._space(structure, size, kind.storages[0]), kind, tally))
                tally.bounds.append(-INFINITE)
            except InfeasibleError as error:
                self.problem = nearer(self.problem, error)

    def _look(self, structure: Structure, kind: Kind, share: float) -> Look:
        tally = Tally(share)
        try:
            self.require_time()
            return self._looked(structure, kind, tally)
        except OutOfTimeError:
            return Look(-INFINITE, None, None, None, tally)
        except InfeasibleError as error:
            return Look(INFINITE, None, None, error, tally)

    def _looked(self, structure: Structure, kind: Kind, tally: Tally) -> Look:
        if self.best is not None and self.problems.folding is not None:
            bound = self._largest(structure, kind, tally)
            if bound >= self._cutoff:
                return Look(bound, None, None, None, tally)
        try:
            first = self._first(structure, kind)
            space = self._space(structure, self.micro_batches(structure.stages)[first], kind.storages[0])
            bound, free, optimum = self._relaxed(space, kind, tally)
            return Look(bound, first, optimum, None, tally, free)
        except InfeasibleError as error:
            if error.constraint != "memory_limit_bytes" or len(self.recomputes) == 1:
                raise
            return Look(self._largest(structure, kind, tally), None, None, error, tally)

    def _optimum_fits(self, structure: Structure, look: Look, kind: Kind) -> bool:
        """Whether it is better than the best known, and fits in memory; it is kept then."""
        optimum = look.optimum
        if optimum is None or look.first is None or (optimum.cost_s >= self._cutoff and not kind.pinned):
            return False
        space = self._space(structure, self.micro_batches(structure.stages)[look.first], kind.storages[0])
        candidate = self._fitting(space, self._costed(space, [(0.0, optimum.strategy)]))
        self._keep(candidate)
        return candidate is not None

    def _raised_bound(self, structure: Structure, look: Look, kind: Kind, tally: Tally) -> float:
        """A bound on a structure, with multipliers that tell more of what its strategies expose; those are what is looked at
        next. Their optima that fit are kept."""
        bound, optimum = look.bound, look.optimum
        if optimum is None or look.first is None or not self._is_charged(kind) or not kind.proves:
            return bound
        space = self._space(structure, self.micro_batches(structure.stages)[look.first], kind.storages[0])
        planes, best, is_first = self._planes(structure), space.exposure, self.exposure is None
        planes.known.append(self._plane(space, optimum.strategy, optimum.cost_s))
        tried, given = [space.exposure], deque((WHOLE, *PROPOSALS) if is_first else (WHOLE,))
        for _ in range(ASCENTS if is_first else FINER_ASCENTS):
            exposure, height = planes.highest()
            if bound >= (1 - self.options.gap_tolerance) * self._cutoff or self._out_of_time():
                break
            if height <= bound * (1 + RISES) or exposure in tried or (given and not is_first):
                # The bound is as high as it gets, by about; other multipliers may still lead to a quicker strategy.
                if not given:
                    break
                exposure = given.popleft()
            tried.append(exposure)
            space = replace(space, exposure=exposure)
            layouts = self.problems.build(space, None) if exposure.whole else self._built(space, kind)
            result = self._solve(layouts, kind, tally, INFINITE, roughly=True)
            strategy = self.problems.strategy(layouts, result.assignment)
            if (exposure.whole or result.cost_s < self._cutoff) and result.memory_bytes <= self.limit:
                self._keep(self._fitting(space, self._costed(space, [(0.0, strategy)])))
            if exposure.whole:
                continue
            raised = min(result.lower_bound_s, self._cutoff)  # of what was left out
            if raised > bound:
                bound, best = raised, exposure
            planes.known.append(self._plane(space, strategy, result.cost_s))
        self.exposure = best
        return bound

    def _planes(self, structure: Structure) -> Planes:
        return Planes(max(1, len({axis.level for axis in structure.view.axes})))

    def _plane(self, space: Space, strategy: Strategy, cost_s: float) -> Plane:
        problems = self.problems
        timeline = Timeline(problems.bound(space.micro_batch), strategy, problems.boxing(space.view), problems.compute)
        weights, first = problems.weights(space), min((axis.level for axis in space.view.axes), default=0)
        return plane_of(cost_s, space.exposure, timeline, first, problems.zones, weights.passes)

    def _open_roomily(self, opened: Sequence[Opened], kind: Kind, tally: Tally) -> None:
        """Where no optimum fits at the largest microbatch that can: keep those that do at the largest that leaves room to
        choose, if they are nearly as quick."""
        for each in opened:
            with suppress(InfeasibleError):
                at = self._first(each.structure, kind, self.limit // 2)
                space = self._space(each.structure, self.micro_batches(1)[at], kind.storages[0])
                *_, optimum = self._relaxed(space, kind, tally)
                if optimum is not None and optimum.cost_s <= NEARLY * each.bound:
                    self._keep(self._fitting(space, self._costed(space, [(0.0, optimum.strategy)])))

    def _largest(self, structure: Structure, kind: Kind, tally: Tally) -> float:
        """A bound on a structure: its largest microbatch that splits evenly, without the memory limit; of repeated blocks
        alone, where there are any. With stages, what moves once a step is mostly more than a microbatch hides: all of it, or
        none, counts, whichever bounds more."""
        sizes = self.micro_batches(structure.stages)
        for size in sizes[:-1] or sizes:
            space = self._space(structure, size, kind.storages[0])
            try:
                floor = self._floor(space)
                if floor >= self._cutoff and self._is_charged(kind):
                    return floor
                exposures = (space.exposure, ALL) if structure.stages > 1 and kind.proves else (space.exposure,)
                return max(self._blocks_or_all_s(replace(space, exposure=each), kind, tally) for each in exposures)
            except InfeasibleError:
                continue
        return -INFINITE

    def _blocks_or_all_s(self, space: Space, kind: Kind, tally: Tally) -> float:
        layouts = self._built(space, kind)
        bound = self._blocks_s(layouts, kind, tally)
        if bound == -INFINITE:
            bound = self._solve(layouts, kind, tally, INFINITE).lower_bound_s
        return min(bound * self._working(space), self._cutoff)

    def _floor(self, space: Space) -> float:
        """A bound on a space, and on smaller microbatches, that needs no edges: of all ops, and of the fullest stage's."""
        return max(self.problems.least_s(space), self.problems.least_blocks_s(space)) * self._working(space)

    def _is_out_of_reach(self, structure: Structure, kind: Kind) -> bool:
        """Whether the floor of the largest microbatch that splits evenly, and so of all, is no better than the best known."""
        if not self.largest_bounds:
            return False
        sizes = self.micro_batches(structure.stages)
        for size in sizes[:-1] or sizes:
            with suppress(InfeasibleError):
                floor = self._floor(self._space(structure, size, kind.storages[0]))
                return floor >= self._cutoff and self._is_charged(kind)
        return False

    def _raise_floor(self, structure: Structure, bound: float) -> None:
        """What no strategy of a structure takes less than, should time be over before more is said of it."""
        self._floors[structure.key] = max(self._floors[structure.key], bound)


def _quickest_first(entry: tuple[Structure, Look]) -> float:
    optimum = entry[1].optimum
    return INFINITE if optimum is None else optimum.cost_s
