"""Lean strategies over many structures: the one of least memory, and some that take a little more and less time.

For each space, eliminations in which a byte counts some seconds: at first far more than any time, then less and less.
Spaces come in the order of the memory that no layout of theirs goes below, until that exceeds the least found. Search adds
memory up by op; what counts is what a strategy takes at its fullest moment, so that the result is close to the least there
is, not proved.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from heapq import heapify, heappop, heappush

from autosbp.errors import InfeasibleError
from autosbp.search._base import Costs, SearchOptions, memory_of
from autosbp.search.problem.weights import CHEAPEST, FASTEST
from autosbp.search.searchers.auto import auto
from autosbp.search.space.candidate import Candidate
from autosbp.search.space.costing import INFINITE
from autosbp.search.space.space_solver import Kind, SpaceSolver
from autosbp.search.space.timed import OutOfTimeError
from autosbp.search.stages.layouts import Layouts, Space, Structure

BYTE_S = 1e-3
"""Seconds that a byte counts: so many that no strategy gives up one for time."""
PARTS = tuple(8.0**-at for at in range(5))
"""Of what a byte takes in the leanest strategy: less for a byte, for strategies that are quicker, or leaner at their fullest
moment."""
ROOMY = 1 << 60
"""A limit that never binds, under which problems keep the layouts of least memory, not those of least time alone."""


class Leanest(SpaceSolver):
    """See the module's docstring. Its limit is 0, so that every schedule is costed."""

    costs_all = True

    def over(self, structures: Iterable[Structure], kind: Kind, enough: int = 0) -> list[Candidate]:
        """Strategies found until the deadline, the leanest first; empty where no microbatch splits evenly. With ``enough``,
        until one takes no more bytes than that, wherever it is found soonest."""
        storages = [each for each in kind.storages if each != FASTEST] or list(kind.storages)
        found: list[Candidate] = []
        least = INFINITE
        with suppress(OutOfTimeError):
            for bound, space in self._spaces(structures, CHEAPEST if len(storages) > 1 else storages[0], enough):
                if least <= enough or (found and self._out_of_time()):
                    break
                for storage in storages if bound < least and not 0 < enough < bound else ():
                    for each in self._of(replace(space, storage=storage)):
                        found.append(each)
                        self.gives_up = True  # there is an answer
                        least = min(least, each.costs.memory_bytes_per_device)
                        if least <= enough:
                            break
        return sorted(found, key=lambda each: (each.costs.memory_bytes_per_device, each.costs.step_time_s))

    def _spaces(self, structures: Iterable[Structure], storage: str, enough: int) -> Iterator[tuple[int, Space]]:
        """With the memory that no layout goes below, least first. Of a structure, smaller microbatches take less: a larger one
        is looked at once it is asked for. Few axes come first, of which there are few layouts: once, for an answer in any case;
        and with ``enough`` wherever twice as much has room."""
        waiting: list[tuple[tuple[bool, int, int], int, int, Iterator[tuple[int, Space]], Space]] = []

        def push(at: int, sizes: Iterator[tuple[int, Space]]) -> None:
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

    def _bounds(self, structure: Structure, storage: str) -> Iterator[tuple[int, Space]]:
        for size in reversed(self.micro_batches(structure.stages)):
            space = Space(structure, size, storage, self.recomputes[-1])
            with suppress(InfeasibleError):
                yield self.problems.least_memory(space), space

    def _of(self, space: Space) -> Iterator[Candidate]:
        try:
            layouts = self.problems.build(space, ROOMY)
        except InfeasibleError:
            return
        usual = 0.0
        for each in self._priced(layouts, BYTE_S):
            usual = each.costs.step_time_s / each.costs.memory_bytes_per_device
            yield each
        for part in PARTS if usual else ():
            if self._out_of_time():
                return
            yield from self._priced(layouts, part * usual)

    def _priced(self, layouts: Layouts, price: float) -> Iterable[Candidate]:
        problem = layouts.problem
        known: dict[tuple[int, int], Costs] = {}
        unary = [
            known.setdefault((id(costs), id(use)), costs + price * use)
            for costs, use in zip(problem.unary_s, problem.memory_bytes, strict=True)
        ]
        options = SearchOptions(seed=self.options.seed, time_limit_s=self._remaining_s())
        try:
            free = auto(replace(problem, unary_s=tuple(unary), memory_limit_bytes=None), options)
        except InfeasibleError:
            return ()
        memory = memory_of(problem, free.assignment)
        found = self._candidates(layouts, replace(free, cost_s=0.0, memory_bytes=memory, certificate=None))
        return (each for each in found if isinstance(each, Candidate))
