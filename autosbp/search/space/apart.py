"""Parts of a search that are looked at two at a time, on two cores: each as if the other were not there.

What one of them finds cuts the other one no shorter, so that it does not matter which process is quicker, nor whether there
is a second one. What they found is kept once both are done, in their order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar, cast

from autosbp.beside import in_turn, spread
from autosbp.errors import InfeasibleError
from autosbp.handed import handed_over
from autosbp.pipeline import Pipeline
from autosbp.plan import Costs, Signature, StageCosts, Strategy
from autosbp.sbp.mesh import Axis, Mesh
from autosbp.sbp.placement import Sbp
from autosbp.schedules import SCHEDULES
from autosbp.search._base import SearchResult
from autosbp.search.space.candidate import Candidate
from autosbp.search.space.costing import Costing
from autosbp.search.space.tally import Tally, nearer
from autosbp.search.space.timed import OutOfTimeError
from autosbp.search.stages.layouts import SpaceKey

Item = TypeVar("Item")
T = TypeVar("T")
AT_ONCE = 2
"""Parts that are looked at, each without what the others find."""

for _kind in (Axis, Mesh, Signature, Strategy, StageCosts, Costs, Candidate, SearchResult):
    handed_over(_kind)
handed_over(Pipeline, "num_stages", "cuts", "schedule", "weights_lag")
for _schedule in SCHEDULES.values():
    handed_over(type(_schedule))
handed_over(Sbp, "kind", "dim", "reduction", "place")
handed_over(InfeasibleError, "constraint", "limit", "needed", "detail", "conflict")


@handed_over
@dataclass(frozen=True)
class Found(Generic[T]):
    """What a part gives, None where its time was over; strategies that are worth keeping; spaces that take more memory than
    search thought, and what is known of those that were searched roughly, by their keys; why others are not possible; and
    what its searches add up to."""

    value: T | None
    kept: tuple[Candidate, ...]
    exceeding: tuple[Any, ...]
    rough: tuple[tuple[Any, float], ...]
    failure: InfeasibleError | None
    tally: Tally
    late: bool
    over: bool


class Apart(Costing):
    """See the module's docstring. ``is_apart`` is set while a part is looked at."""

    is_apart = False
    _rough: dict[SpaceKey, float] | None = None
    _kept: list[Candidate]

    def _spread(self, tasks: Sequence[Callable[[], T]]) -> list[T]:
        """What tasks give, on two cores where they take long enough."""
        return spread(tasks, self.wait) if self.problems.pays_to_share else in_turn(tasks)

    def wait(self) -> None:
        """While the other process works, which knows the time, but not that a caller ended the search."""
        self._tell()
        if self.stopped:
            self.require_time()

    def _in_rounds(
        self,
        items: Iterable[Item],
        is_open: Callable[[Item], bool],
        look: Callable[[Item, Tally], T],
        tally: Tally,
        prepare: Callable[[Sequence[Item]], None] | None = None,
        most: int = AT_ONCE,
    ) -> Iterator[tuple[Item, T | None]]:
        """Items, in their order, with what a look at each of them gives; None for those that are open no longer when it is
        their turn. So many are looked at without what the others find, just one where a look takes no longer than a process to
        start; ``prepare`` is called with these."""
        waiting, most = deque(items), most if self.problems.pays_to_share else 1
        while waiting:
            chosen: list[Item] = []
            while waiting and len(chosen) < most:
                item = waiting.popleft()
                if is_open(item):
                    chosen.append(item)
                else:
                    yield item, None
            if prepare is not None:
                prepare(chosen)
            if len(chosen) == 1:
                yield chosen[0], look(chosen[0], tally)
            else:
                yield from zip(chosen, self._beside([partial(look, item) for item in chosen], tally), strict=True)

    def _beside(self, looks: Sequence[Callable[[Tally], T]], tally: Tally) -> list[T]:
        """What each look gives. Raises ``OutOfTimeError`` where time was over for one; what was found until then is kept."""
        values: list[T] = []
        for found in self._spread([partial(self._looked_apart, look, tally.share) for look in looks]):
            tally.add(found.tally)
            self.late |= found.late
            self._exceeding.update(found.exceeding)
            if self._rough is not None:
                self._rough.update(found.rough)
            if found.failure is not None:
                self.problem = nearer(self.problem, found.failure)
            for candidate in found.kept:
                self._keep(candidate)
            if not found.over:
                values.append(cast(T, found.value))
        if len(values) < len(looks):
            raise OutOfTimeError
        return values

    def _looked_apart(self, look: Callable[[Tally], T], share: float) -> Found[T]:
        before, tally, value, over = self._snapshot(), Tally(share), None, True
        before_exceeding, before_rough = set(self._exceeding), dict(self._rough or {})
        self.problem, self.is_apart, self._kept = None, True, []
        try:
            with suppress(OutOfTimeError):
                value = look(tally)
                over = False
            worth = [each for each in self._kept if self._is_worth_keeping(each)]
            rough = [entry for entry in (self._rough or {}).items() if before_rough.get(entry[0]) != entry[1]]
            return Found(
                value, tuple(worth), tuple(self._exceeding - before_exceeding), tuple(rough), self.problem, tally,
                self.late, over,
            )  # fmt: skip
        finally:
            self._restore(before)

    def _snapshot(self) -> dict[str, Any]:
        """All that a look may change, but for caches, and that a caller ended the search."""
        return {
            name: value.copy() if isinstance(value, (dict, set, list)) else value for name, value in vars(self).items()
        }

    def _restore(self, snapshot: dict[str, Any]) -> None:
        stopped = self.stopped
        vars(self).clear()
        vars(self).update(snapshot)
        self.stopped = stopped

    def _keep(self, candidate: Candidate | None) -> None:
        super()._keep(candidate)
        if self.is_apart and candidate is not None:
            self._kept.append(candidate)

    def _is_worth_keeping(self, candidate: Candidate) -> bool:
        """Whether a strategy found is of use to others."""
        return candidate is self.best
