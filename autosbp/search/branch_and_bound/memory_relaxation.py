"""Lagrangian relaxation of the memory limit: layouts from the fastest to the smallest, until one fits.

If memory binds, the search gives blocks different layouts: as few blocks as possible get small layouts, by the sum of
bytes over all stages. In a pipeline, one stage may hold all the large blocks. With a Lagrange multiplier of memory,
equal blocks have equal layouts, and the need of a stage follows from that. The multiplier at which two strategies cost
the same gives those between them, so few solves suffice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from autosbp.search._base import Costs, SearchProblem, SearchResult, memory_of

MAX_MULTIPLIERS = 10
"""Maximum number of multipliers."""
MEMORY_ONLY_FACTOR = 1e9
"""Multiplier relative to a strategy's seconds per byte, at which no strategy gives up a byte for time."""
Solve = Callable[[SearchProblem], SearchResult]


def solve_with_multiplier(problem: SearchProblem, price: float, solve: Solve) -> SearchResult:
    """Minimise seconds plus ``price`` per byte without the memory limit; ``cost_s`` excludes the price."""
    known: dict[tuple[int, int], Costs] = {}
    unary = tuple(
        known.setdefault((id(costs), id(use)), costs + price * use)
        for costs, use in zip(problem.unary_s, problem.memory_bytes, strict=True)
    )
    found = solve(replace(problem, unary_s=unary, memory_limit_bytes=None))
    memory = memory_of(problem, found.assignment)
    paid = price * (memory - problem.fixed_memory_bytes)
    return replace(found, cost_s=found.cost_s - paid, memory_bytes=memory, certificate=None)


def fastest_that_fits(problem: SearchProblem, solve: Solve, is_too_large: Callable[[SearchResult], bool]) -> None:
    """Search by secants for the fastest layouts that are not too large.

    The last call of ``is_too_large`` that returns False is for them, if there are any.

    Args:
        problem: with seconds and bytes.
        solve: solves a problem without a memory limit to optimality.
        is_too_large: tests the result at some multiplier. If False, no smaller layouts are tried.
    """
    large = solve_with_multiplier(problem, 0.0, solve)
    if not is_too_large(large):
        return
    small = solve_with_multiplier(problem, MEMORY_ONLY_FACTOR * large.cost_s / max(large.memory_bytes, 1), solve)
    asked = False  # whether ``small`` was tested
    for _ in range(MAX_MULTIPLIERS):
        saved = large.memory_bytes - small.memory_bytes
        if saved <= 0:
            return
        found = solve_with_multiplier(problem, (small.cost_s - large.cost_s) / saved, solve)
        is_last = not small.memory_bytes < found.memory_bytes < large.memory_bytes  # no layouts between the two
        if is_last and asked:
            return
        found = small if is_last else found
        if not is_too_large(found):
            small, asked = found, True
        elif not is_last:
            large = found
        if is_last:
            return
