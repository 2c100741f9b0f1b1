"""Subtasks of a search on two cores, each isolated from the others.

A subtask does not use the cutoffs that others find, so results depend neither on timing nor on whether there is a
second process. Their findings are merged in order, once all are done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar, cast

from autosbp.errors import InfeasibleError
from autosbp.plan.pipeline import Pipeline
from autosbp.plan.plan import Costs, Signature, StageCosts, Strategy
from autosbp.plan.schedules import SCHEDULES
from autosbp.sbp.layout import Sbp
from autosbp.sbp.mesh import Axis, Mesh
from autosbp.search._base import SearchResult
from autosbp.search.branch_and_bound.candidate import Candidate
from autosbp.search.branch_and_bound.clock import OutOfTimeError
from autosbp.search.branch_and_bound.context import SearchContext
from autosbp.search.branch_and_bound.search_stats import SearchStats
from autosbp.utils.parallel import run_parallel, run_serial
from autosbp.utils.serialization import serializable

Item = TypeVar("Item")
T = TypeVar("T")
TASKS_PER_ROUND = 2
"""Number of subtasks that run without each other's findings."""

for _kind in (Axis, Mesh, Signature, Strategy, StageCosts, Costs, Candidate, SearchResult):
    serializable(_kind)
serializable(Pipeline, "num_stages", "cuts", "schedule", "weights_lag")
for _schedule in SCHEDULES.values():
    serializable(type(_schedule))
serializable(Sbp, "kind", "dim", "reduction", "place")
serializable(InfeasibleError, "constraint", "limit", "needed", "detail", "conflict")


@serializable
@dataclass(frozen=True)
class TaskResult(Generic[T]):
    """Result of a subtask.

    Args:
        value: None if its time was over.
        kept: strategies worth keeping.
        exceeding: subproblems with strategies whose peak memory exceeds the search's estimate.
        rough: bounds of roughly searched subproblems, by key.
        late: work was skipped because time was over.
        over: time was over before there was a value.
    """

    value: T | None
    kept: tuple[Candidate, ...]
    over_limit: tuple[Any, ...]
    rough: tuple[tuple[Any, float], ...]
    late: bool
    over: bool


class ParallelTasks:
    """Runs subtasks of a search, see the module's docstring."""

    def __init__(self, context: SearchContext) -> None:
        self.context = context

    def spread(self, tasks: Sequence[Callable[[], T]]) -> list[T]:
        """Results of the tasks, on two cores if that pays. Adds up their search statistics."""

        def counted(task: Callable[[], T]) -> tuple[T, SearchStats]:
            with self.context.counted() as tally:
                return task(), tally

        every = [partial(counted, task) for task in tasks]
        found = (
            run_parallel(every, self.context.clock.wait)
            if self.context.problems.worth_second_process
            else run_serial(every)
        )
        for _, tally in found:
            self.context.stats.add(tally)
        return [value for value, _ in found]

    def in_rounds(
        self,
        items: Iterable[Item],
        is_open: Callable[[Item], bool],
        look: Callable[[Item], T],
        prepare: Callable[[Sequence[Item]], None] | None = None,
        most: int = TASKS_PER_ROUND,
    ) -> Iterator[tuple[Item, T | None]]:
        """Process items in rounds of parallel subtasks.

        Args:
            items: in the order of processing.
            is_open: tested when it is an item's turn; others are skipped.
            look: processes one item.
            prepare: called with the items of each round.
            most: items per round; one if a subtask takes no longer than starting a process.

        Yields:
            Each item with its result, None if skipped.
        """
        waiting, most = deque(items), most if self.context.problems.worth_second_process else 1
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
                yield chosen[0], look(chosen[0])
            else:
                yield from zip(chosen, self._run_isolated([partial(look, item) for item in chosen]), strict=True)

    def _run_isolated(self, looks: Sequence[Callable[[], T]]) -> list[T]:
        """Results of the subtasks; keeps their strategies and findings.

        Raises:
            OutOfTimeError: time was over for one of them. Everything found until then is kept.
        """
        values, context, learnt = list[T](), self.context, self.context.findings
        for found in self.spread([partial(self._isolated_result, look) for look in looks]):
            context.clock.late |= found.late
            learnt.over_limit.update(found.over_limit)
            if learnt.rough is not None:
                learnt.rough.update(found.rough)
            for candidate in found.kept:
                context.keep(candidate)
            if not found.over:
                values.append(cast(T, found.value))
        if len(values) < len(looks):
            raise OutOfTimeError
        return values

    def _isolated_result(self, look: Callable[[], T]) -> TaskResult[T]:
        learnt, incumbent, value, over = self.context.findings, self.context.incumbent, None, True
        exceeding, known = set(learnt.over_limit), dict(learnt.rough or {})
        with self.context.apart():
            with suppress(OutOfTimeError):
                value = look()
                over = False
            rough = [entry for entry in (learnt.rough or {}).items() if known.get(entry[0]) != entry[1]]
            exceeding = learnt.over_limit - exceeding
            return TaskResult(value, incumbent.useful(), tuple(exceeding), tuple(rough), self.context.clock.late, over)
