"""Lean strategies over many structures: the one of least memory, and some that take a little more and less time.

For each space, eliminations in which a byte counts some seconds: at first far more than any time, then less and less.
Spaces come in the order of the memory that no layout of theirs goes below, until that exceeds the least found. Search adds
memory up by op; what counts is what a strategy takes at its fullest moment, so that the result is close to the least there
is, not proved.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from autosbp.errors import InfeasibleError
from autosbp.search._base import SearchResult, memory_of
from autosbp.search.problem.weights import CHEAPEST, FASTEST
from autosbp.search.searchers.elimination import minimise, plan_problem
from autosbp.search.searchers.pruning import canonical
from autosbp.search.space.candidate import Candidate
from autosbp.search.space.space_solver import INFINITE, Kind, SpaceSolver
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

    def over(self, structures: Iterable[Structure], kind: Kind, enough: int = 0) -> list[Candidate]:
        """Strategies found until the deadline, or until one takes no more than ``enough`` bytes, the leanest first; empty
        where no microbatch splits evenly."""
        storages = [each for each in kind.storages if each != FASTEST] or list(kind.storages)
        bounds = list(self._bounds(structures, CHEAPEST if len(storages) > 1 else storages[0]))
        found: list[Candidate] = []
        least = INFINITE
        for bound, space in sorted(bounds, key=lambda entry: entry[0]):
            if bound >= least or least <= enough or (found and self._out_of_time()):
                break
            for storage in storages:
                for each in self._of(replace(space, storage=storage)):
                    found.append(each)
                    least = min(least, each.costs.memory_bytes_per_device)
                    if least <= enough:
                        break
        return sorted(found, key=lambda each: (each.costs.memory_bytes_per_device, each.costs.step_time_s))

    def _bounds(self, structures: Iterable[Structure], storage: str) -> Iterator[tuple[int, Space]]:
        for structure in structures:
            for size in self.micro_batches(structure.stages):
                space = Space(structure, size, storage, self.recomputes[-1])
                try:
                    yield self.problems.least_memory(space), space
                except InfeasibleError:
                    continue

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
        problem = canonical(layouts.problem).problem
        solution = minimise(problem, plan_problem(problem), lambda: None, [price] * problem.num_variables)
        if solution.bound_s == INFINITE:
            return ()
        memory = memory_of(problem, solution.assignment)
        result = SearchResult(solution.assignment, 0.0, memory, -INFINITE, 0.0, 0, (), 0.0, "exact")
        return self._candidates(layouts, result)
