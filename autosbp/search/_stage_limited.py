"""Structures with the bounds of their stages (``_stage_bound``): what no microbatch leaves room for is not searched."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from autosbp.beside import spread
from autosbp.sbp.mesh import Mesh
from autosbp.search._layouts import Structure
from autosbp.search._recompute import INTERVALS
from autosbp.search._space_solver import INFINITE, Kind, SpaceSolver, Tally
from autosbp.search._stage_bound import Hints, Recomputed, StageBounds, Wanted
from autosbp.search._wait_bound import WaitBounds

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
        stages = self._bounds_of(structure, kind)
        found = stages.shut(self._cutoff, self._out_of_time)
        self._hints.setdefault(structure.stages, {}).update(stages.hints)
        return found

    def settle(self, kind: Kind, tally: Tally) -> None:
        """The least bound of what was kept open, raised by those of stages as far as time allows."""
        level = self._cutoff
        left = sorted(self.left, key=lambda left: min(left.bounds, default=INFINITE))
        if kind.relaxes and kind.proves and not self.problems.network.cluster.groups:
            deadline = max(self.deadline, time.monotonic() + SHARE * self.options.time_limit_s)
            tasks = [partial(self._raised, each, kind, level, deadline) for each in left]
            raised = spread(tasks) if self.problems.pays_to_share else [task() for task in tasks]
            left = [Left(each.structure, bounds) for each, bounds in zip(left, raised, strict=True)]
        if left:
            tally.bounds.append(min(level, *(bound for each in left for bound in each.bounds)))

    def _raised(self, left: Left, kind: Kind, level: float, deadline: float) -> list[float]:
        """Its bounds, and those of stages where these are higher, up to a level. What one structure teaches of prices is kept
        from the others: which process does which makes no difference."""
        if min(left.bounds, default=INFINITE) >= level:
            return left.bounds

        def overdue() -> bool:
            return time.monotonic() >= deadline

        if not self._bounds_stages(kind):
            return self._waited(left, kind, level, overdue)
        stages = self._bounds_of(left.structure, kind)
        stages.shut(level, overdue)
        return [
            bound if bound >= level else max(bound, stages.least(at, level)) for at, bound in enumerate(left.bounds)
        ]

    def _waited(self, left: Left, kind: Kind, level: float, overdue: Callable[[], bool]) -> list[float]:
        """Its bounds with waits, up to a level."""
        if left.structure.stages == 1 or kind.pinned:
            return left.bounds
        sizes = self.micro_batches(left.structure.stages)
        waits = WaitBounds(self.problems, left.structure, sizes, kind.storages[0], self.options.schedules)
        return waits.raised(left.bounds, level, overdue)

    def _bounds_stages(self, kind: Kind) -> bool:
        problems = self.problems
        return kind.relaxes and kind.proves and problems.folding is not None and not problems.network.cluster.groups

    def _bounds_of(self, structure: Structure, kind: Kind) -> StageBounds:
        key = structure.stages, structure.view, id(structure.allowed)
        if key not in self._stage_bounds:
            wanted = Wanted(kind.storages, self._recomputed(), self.options.schedules, self.limit)
            sizes = self.micro_batches(structure.stages)
            hints = dict(self._hints.get(structure.stages, {}))
            self._stage_bounds[key] = StageBounds(self.problems, structure, sizes, wanted, hints)
        return self._stage_bounds[key]

    def _recomputed(self) -> tuple[Recomputed, ...]:
        """What ``Recomputation`` makes of strategies."""
        every = self.options.recompute
        if every:
            return (Recomputed(False, True, every),)
        kept = Recomputed(True, False)
        if len(self.recomputes) == 1:
            return (kept,)
        return kept, Recomputed(True, True), Recomputed(False, True, max(INTERVALS))
