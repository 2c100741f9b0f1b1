"""Structures with the bounds of their stages (``bounds.stage_bound``): what no microbatch leaves room for is not searched."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from autosbp.costmodel.memory.libraries import held_bytes
from autosbp.errors import InfeasibleError
from autosbp.search.bounds.block_room import Hints, Recomputed, Wanted
from autosbp.search.bounds.stage_bound import Learnt, StageBounds
from autosbp.search.bounds.wait_bound import MOST_STAGES, WaitBounds
from autosbp.search.space.costing import INFINITE
from autosbp.search.space.recompute import INTERVALS
from autosbp.search.space.space_solver import Kind, SpaceSolver
from autosbp.search.space.tally import Tally
from autosbp.search.space.timed import OutOfTimeError
from autosbp.search.stages.layouts import Structure

FIRST = 2
"""Structures whose bounds are raised before those of the others."""
SHARE, NEAR = 0.25, 0.95
"""Of the time limit, what bounds may take once nothing more is searched; and of the best step the part from which on the waits
of repeated blocks are looked at, too: they are not much."""


@dataclass
class Left:
    """A structure that is not shown to be worse: a bound for each size of its microbatches, largest first, and what it was when
    it was ``searched``, of work that is dealt out evenly; and before any waits, ``worked``."""

    structure: Structure
    bounds: list[float]
    searched: list[float]
    worked: list[float] = field(default_factory=list)


class StageLimited(SpaceSolver):
    """See the module's docstring."""

    left: list[Left]
    _stage_bounds: dict[Hashable, StageBounds]
    _hints: dict[int, Hints]
    _wait_bounds: dict[Hashable, WaitBounds]

    def begin(self) -> None:
        """Forget what is known of other structures."""
        self.left, self._stage_bounds, self._hints, self._relaxations, self._free = [], {}, {}, {}, {}
        self._wait_bounds = {}

    def keep_open(self, structure: Structure, bounds: float | Sequence[float]) -> None:
        """Leave it to ``settle`` to say more than these bounds, one for all or one a size."""
        count = len(self.micro_batches(structure.stages))
        known = [bounds] * count if isinstance(bounds, float) else list(bounds)
        self.left.append(Left(structure, known, known))

    def shut(self, structure: Structure, kind: Kind) -> list[bool]:
        """Of each size, whether stages have no room for a step that is better than the best known; none where nothing is
        known, or time is over."""
        if self.best is None or not self._bounds_stages(kind):
            return [False] * len(self.micro_batches(structure.stages))
        stages = self._bounds_of(structure, kind)
        if self.is_apart:  # what is known
            return stages.shut(self._cutoff, lambda: True)
        found = stages.shut(self._cutoff, self._out_of_time)
        self._learn(structure, stages)
        return found

    def shut_at_once(self, structures: Sequence[Structure], kind: Kind) -> None:
        """Look for what ``shut`` says of each of these, on two cores. What one teaches of prices is kept from the others."""
        if self.best is None or not self._bounds_stages(kind):
            return
        structures = [each for each in structures if not self._bounds_of(each, kind).knows(self._cutoff)]
        if len(structures) < 2:
            return
        every = [self._bounds_of(structure, kind) for structure in structures]

        def look(stages: StageBounds) -> Learnt:
            stages.shut(self._cutoff, self._out_of_time)
            return stages.learnt()

        for structure, learnt in zip(
            structures, self._spread([partial(look, stages) for stages in every]), strict=True
        ):
            # Anew, whoever looked: as much is known of it in each process.
            del self._stage_bounds[structure.key]
            stages = self._bounds_of(structure, kind)
            stages.learn(learnt)
            self._learn(structure, stages)

    def _learn(self, structure: Structure, stages: StageBounds) -> None:
        self._hints[structure.stages] = {**self._hints.get(structure.stages, {}), **stages.hints}

    def settle(self, kind: Kind, tally: Tally) -> None:
        """The least bound of what was kept open, raised by those of stages, and by waits, as far as time allows."""
        if not self.left:
            return
        level = self._cutoff
        if kind.relaxes and kind.proves and not self.problems.network.cluster.groups:
            deadline = min(max(self.deadline, time.monotonic() + SHARE * self.options.time_limit_s), self.end)
            tally.bounds.append(self._least_raised(kind, level, lambda: time.monotonic() >= deadline))
        else:
            tally.bounds.append(min([level, *(min(left.bounds) for left in self.left if left.bounds)]))

    def _least_raised(self, kind: Kind, level: float, overdue: Callable[[], bool]) -> float:
        """Not above a level. What few stages wait is least: their bounds are how far those of more stages need to be raised.
        Where few stages are looked at cut by cut, which takes longest, that is last, and no further than those of more
        stages allow."""
        waiting = [left for left in self.left if min(left.bounds, default=INFINITE) < level]
        waiting.sort(key=lambda left: (left.structure.stages, min(left.bounds)))
        if self.problems.folding is None:
            few = [left for left in waiting if left.structure.stages <= MOST_STAGES]
            many = [left for left in waiting if left.structure.stages > MOST_STAGES]
            few = self._all_raised(few, kind, level, overdue)
            many = self._all_raised(many, kind, level, overdue)
            least = min([level, *(min(left.bounds) for left in many)])
            few = self._all_raised(few, kind, least, overdue, cut_by_cut=True)
            return min([least, *(min(left.bounds) for left in few)])
        least = level
        for some in (waiting[:FIRST], sorted(waiting[FIRST:], key=lambda left: min(left.bounds))):
            lower = [left for left in some if min(left.bounds) < least]
            least = min([least, *(min(left.bounds) for left in self._all_raised(lower, kind, least, overdue))])
        return least

    def _all_raised(
        self, some: Sequence[Left], kind: Kind, level: float, overdue: Callable[[], bool], *, cut_by_cut: bool = False
    ) -> list[Left]:
        """With their bounds raised up to a level. One structure apart from another: which process does which makes no
        difference."""
        found = self._spread([partial(self._one_raised, left, kind, level, overdue, cut_by_cut) for left in some])
        return [replace(left, bounds=bounds, worked=worked) for left, (bounds, worked) in zip(some, found, strict=True)]

    def _one_raised(
        self, left: Left, kind: Kind, level: float, overdue: Callable[[], bool], cut_by_cut: bool
    ) -> tuple[list[float], list[float]]:
        """Its bounds, and those before waits."""
        if not cut_by_cut:
            worked = self._raised(left, kind, level, overdue)
            left = replace(left, bounds=worked, worked=worked)
        if self.problems.folding is None or NEAR * self._cutoff <= min(left.bounds):
            return self._waited(left, kind, level, overdue, cut_by_cut=cut_by_cut), left.worked
        return left.bounds, left.worked

    def _raised(self, left: Left, kind: Kind, level: float, overdue: Callable[[], bool]) -> list[float]:
        """Those of stages, where these are higher. What one structure teaches of prices is kept from the others."""
        if not self._bounds_stages(kind):
            return left.bounds
        stages = self._bounds_of(left.structure, kind)
        stages.shut(level, overdue)
        return [
            bound if bound >= level else max(bound, stages.least(at, level)) for at, bound in enumerate(left.bounds)
        ]

    def _waited(
        self, left: Left, kind: Kind, level: float, overdue: Callable[[], bool], *, cut_by_cut: bool = False
    ) -> list[float]:
        """With waits, as far as tells the least of them. Of repeated blocks, work dealt out evenly is looked at anew."""
        bounds = list(left.bounds)
        if left.structure.stages == 1 or kind.pinned or self.problems.is_shared:
            return bounds
        sizes = self.micro_batches(left.structure.stages)
        key = (left.structure.key, kind.storages)
        if key not in self._wait_bounds:
            self._wait_bounds[key] = WaitBounds(
                self.problems, left.structure, sizes, kind.storages, self.options.schedules
            )
        waits = self._wait_bounds[key]
        for at in sorted(range(len(bounds)), key=bounds.__getitem__):
            if bounds[at] < level and not overdue():
                # What all stages work is bounded twice; bounds of repeated blocks have waits in them.
                searched_s, worked_s = left.searched[at], left.worked[at]
                if self.problems.folding is not None:
                    searched_s = worked_s = self._evenly_s(left.structure, sizes[at], kind)
                until = overdue if cut_by_cut else None
                bounds[at] = max(bounds[at], waits.raised(at, searched_s, worked_s, level, until))
            level = min(level, bounds[at])
        return bounds

    def _evenly_s(self, structure: Structure, size: int, kind: Kind) -> float:
        """A bound of work that is dealt out evenly."""
        space = self._space(structure, size, kind.storages[0])
        try:
            layouts = self._built(space, kind)
        except InfeasibleError:
            return INFINITE
        try:
            bound_s = self._solve(layouts, kind, Tally(), INFINITE).lower_bound_s * self._working(space)
            return min(bound_s, self._cutoff)  # of what was left out
        except OutOfTimeError:
            return -INFINITE

    def _bounds_stages(self, kind: Kind) -> bool:
        """Whether bounds of stages are known: of repeated blocks. Parameters that are pinned apart from their use may cost less
        than they charge, and stages that share hardware take less while others wait."""
        known = kind.relaxes and kind.proves and not kind.pinned and not self.problems.network.cluster.groups
        return known and self.problems.folding is not None and not self.problems.is_shared

    def _bounds_of(self, structure: Structure, kind: Kind) -> StageBounds:
        key = structure.key
        if key not in self._stage_bounds:
            room = self.limit - held_bytes(self.problems.compute.device.kind)
            wanted = Wanted(kind.storages, self._recomputed(), self.options.schedules, room)
            sizes = self.micro_batches(structure.stages)
            hints = dict(self._hints.get(structure.stages, {}))
            self._stage_bounds[key] = StageBounds(self.problems, structure, sizes, wanted, hints)
        return self._stage_bounds[key]

    def _recomputed(self) -> tuple[Recomputed, ...]:
        """What ``Recomputation`` makes of strategies."""
        every = self.options.recompute
        if every:
            return (Recomputed(False, True, every),)
        if len(self.recomputes) == 1:
            return (Recomputed(True, False),)
        return Recomputed(True, True), Recomputed(False, True, max(INTERVALS))
