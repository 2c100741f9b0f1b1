"""Structures with the bounds of their stages (``_stage_bound``): what no microbatch leaves room for is not searched."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from autosbp.sbp.mesh import Mesh
from autosbp.search._layouts import Structure
from autosbp.search._recompute import INTERVALS
from autosbp.search._space_solver import INFINITE, Kind, SpaceSolver, Tally
from autosbp.search._stage_bound import Hints, Recomputed, StageBounds, Wanted

SHARE = 0.25
"""Of the time limit, what bounds may take once nothing more is searched."""


@dataclass
class Left:
    """A structure that is not shown to be worse: a bound for each size of its microbatches, largest first."""

    structure: Structure
    bounds: list[float]


class StageLimited(SpaceSolver):
    """See the module's docstring."""

    left: list[Left]
    _stage_bounds: dict[tuple[int, Mesh, int], StageBounds]
    _hints: dict[int, Hints]

    def begin(self) -> None:
        """Forget what is known of other structures."""
        self.left, self._stage_bounds, self._hints = [], {}, {}

    def keep_open(self, structure: Structure, bounds: float | Sequence[float]) -> None:
        """Leave it to ``settle`` to say more than these bounds, one for all or one a size."""
        count = len(self.micro_batches(structure.stages))
        self.left.append(Left(structure, [bounds] * count if isinstance(bounds, float) else list(bounds)))

    def shut(self, structure: Structure, kind: Kind) -> list[bool]:
        """Of each size, whether stages have no room for a step that is better than the best known; none where nothing is
        known, or time is over."""
        if self.best is None or not self._bounds_stages(kind):
            return [False] * len(self.micro_batches(structure.stages))
        return self._bounds_of(structure, kind).shut(self._cutoff, self._out_of_time)

    def settle(self, kind: Kind, tally: Tally) -> None:
        """The least bound of what was kept open, raised by those of stages as far as time allows."""
        level = self._cutoff
        deadline = max(self.deadline, time.monotonic() + SHARE * self.options.time_limit_s)

        def late() -> bool:
            return time.monotonic() >= deadline

        for left in sorted(self.left, key=lambda left: min(left.bounds, default=INFINITE)):
            if self._bounds_stages(kind) and min(left.bounds, default=INFINITE) < level and not late():
                stages = self._bounds_of(left.structure, kind)
                stages.shut(level, late)
                left.bounds = [
                    bound if bound >= level else max(bound, stages.least(at, level))
                    for at, bound in enumerate(left.bounds)
                ]
            level = min(level, *left.bounds) if left.bounds else level
        if self.left:
            tally.bounds.append(level)

    def _bounds_stages(self, kind: Kind) -> bool:
        problems = self.problems
        return kind.relaxes and kind.proves and problems.folding is not None and not problems.network.cluster.groups

    def _bounds_of(self, structure: Structure, kind: Kind) -> StageBounds:
        key = structure.stages, structure.view, id(structure.allowed)
        if key not in self._stage_bounds:
            wanted = Wanted(kind.storages, self._recomputed(), self.options.schedules, self.limit)
            sizes = self.micro_batches(structure.stages)
            hints = self._hints.setdefault(structure.stages, {})
            self._stage_bounds[key] = StageBounds(self.problems, structure, sizes, wanted, hints)
        return self._stage_bounds[key]

    def _recomputed(self) -> tuple[Recomputed, ...]:
        """What ``Recomputation`` makes of strategies."""
        every = self.options.recompute
        if every:
            return (Recomputed(False, True, every, every),)
        kept = Recomputed(True, False)
        if len(self.recomputes) == 1:
            return (kept,)
        return kept, Recomputed(True, True), Recomputed(False, True, min(INTERVALS), max(INTERVALS))
