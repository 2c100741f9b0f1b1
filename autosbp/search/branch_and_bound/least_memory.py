"""Low-memory strategies over many structures: the smallest, and some that are slightly larger and faster.

Each subproblem is eliminated with a Lagrange multiplier of memory: first so large that bytes outweigh any time, then
ever smaller. Subproblems come in the order of a lower bound on their memory, until it exceeds the least memory found.
The search adds memory up by op, while the peak memory of a strategy is what counts. So the result is close to the
minimum, but not proved.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from heapq import heapify, heappop, heappush

from autosbp.errors import InfeasibleError
from autosbp.search._base import Costs, SearchOptions, memory_of
from autosbp.search.branch_and_bound.candidate import INFINITE, Candidate
from autosbp.search.branch_and_bound.clock import OutOfTimeError
from autosbp.search.branch_and_bound.context import SearchContext, SearchMode
from autosbp.search.branch_and_bound.strategy_coster import StrategyCoster
from autosbp.search.plan_options import PlanOptions
from autosbp.search.problem.cost_weights import CHEAPEST, FASTEST
from autosbp.search.solvers.auto import auto
from autosbp.search.stages.layout_problems import LayoutProblems, PipelineStructure, Subproblem, SubproblemKey

LARGEST_MULTIPLIER = 1e-3
"""Lagrange multiplier (s/byte) at which no strategy gives up a byte for time."""
MULTIPLIER_FACTORS = tuple(8.0**-at for at in range(5))
"""Factors for the smaller multipliers, relative to the seconds per byte of the smallest strategy.

They give faster strategies, or ones with a lower peak.
"""
UNLIMITED_BYTES = 1 << 60
"""A limit that never binds. With it, problems keep the layouts of least memory, not only those of least time."""


class LeastMemorySearch:
    """Search for low-memory strategies, see the module's docstring."""

    def __init__(self, problems: LayoutProblems, options: PlanOptions, deadline: float) -> None:
        # With a limit of 0, every schedule is costed.
        self.context, self.problems = SearchContext(problems, options, 0, deadline), problems
        self.coster, self.clock = StrategyCoster(self.context, costs_all=True), self.context.clock

    def over(self, structures: Iterable[PipelineStructure], kind: SearchMode, enough: int = 0) -> list[Candidate]:
        """Strategies found until the deadline, smallest first; empty if no microbatch splits evenly.

        With ``enough`` (bytes), the search ends at the first strategy that takes no more, and looks first where it may
        be found soonest.
        """
        storages = [each for each in kind.parameter_shardings if each != FASTEST] or list(kind.parameter_shardings)
        found: list[Candidate] = []
        least = INFINITE
        with suppress(OutOfTimeError):
            for bound, space in self._spaces(structures, CHEAPEST if len(storages) > 1 else storages[0], enough):
                if least <= enough or (found and self.clock.out_of_time()):
                    break
                for storage in storages if bound < least and not 0 < enough < bound else ():
                    for each in self._strategies(replace(space, storage=storage)):
                        found.append(each)
                        self.clock.may_end_empty = True  # there is a result now
                        least = min(least, each.costs.memory_bytes_per_device)
                        if least <= enough:
                            break
        return sorted(found, key=lambda each: (each.costs.memory_bytes_per_device, each.costs.step_time_s))

    def _spaces(
        self, structures: Iterable[PipelineStructure], storage: str, enough: int
    ) -> Iterator[tuple[int, SubproblemKey]]:
        """Subproblems with a lower bound on their memory, lowest first.

        Smaller microbatches of a structure take less memory, so a larger one is added when the smaller one is consumed.
        Mesh views with few axes have few layouts: one comes first, to have a result in any case. With ``enough``, they
        come first whenever twice their bound fits.
        """
        waiting: list[tuple[tuple[bool, int, int], int, int, Iterator[tuple[int, SubproblemKey]], SubproblemKey]] = []

        def push(at: int, sizes: Iterator[tuple[int, SubproblemKey]]) -> None:
            for bound, space in sizes:
                order = (2 * bound > enough, space.view.ndim, bound) if enough else (True, 0, bound)
                heappush(waiting, (order, at, bound, sizes, space))
                return

        for at, structure in enumerate(structures):
            push(at, self._bounds(structure, storage))
        if waiting and not enough:
            first = min(waiting, key=lambda entry: (entry[4].stages, entry[4].view.ndim))
            waiting.remove(first)
            heapify(waiting)
            heappush(waiting, ((False, 0, 0), *first[1:]))
        while waiting:
            _, at, bound, sizes, space = heappop(waiting)
            yield bound, space
            push(at, sizes)

    def _bounds(self, structure: PipelineStructure, storage: str) -> Iterator[tuple[int, SubproblemKey]]:
        for size in reversed(self.context.micro_batches(structure.stages)):
            space = SubproblemKey(structure, size, storage, self.context.checkpointing_choices[-1])
            with suppress(InfeasibleError):
                yield self.problems.least_memory(space), space

    def _strategies(self, space: SubproblemKey) -> Iterator[Candidate]:
        try:
            layouts = self.problems.build(space, UNLIMITED_BYTES)
        except InfeasibleError:
            return
        usual = 0.0
        for each in self._with_multiplier(layouts, LARGEST_MULTIPLIER):
            usual = each.costs.step_time_s / each.costs.memory_bytes_per_device
            yield each
        for part in MULTIPLIER_FACTORS if usual else ():
            if self.clock.out_of_time():
                return
            yield from self._with_multiplier(layouts, part * usual)

    def _with_multiplier(self, layouts: Subproblem, price: float) -> Iterable[Candidate]:
        problem = layouts.problem
        known: dict[tuple[int, int], Costs] = {}
        unary = [
            known.setdefault((id(costs), id(use)), costs + price * use)
            for costs, use in zip(problem.unary_s, problem.memory_bytes, strict=True)
        ]
        options = SearchOptions(seed=self.context.options.seed, time_limit_s=self.clock.remaining_s())
        try:
            free = auto(replace(problem, unary_s=tuple(unary), memory_limit_bytes=None), options)
        except InfeasibleError:
            return ()
        memory = memory_of(problem, free.assignment)
        found = self.coster.candidates(layouts, replace(free, cost_s=0.0, memory_bytes=memory, certificate=None))
        return (each for each in found if isinstance(each, Candidate))
