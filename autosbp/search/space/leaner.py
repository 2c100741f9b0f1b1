"""Layouts of least seconds at some price of memory, from the quickest to the leanest, until one has room.

Where memory binds, search makes blocks unlike: some in layouts that take less, as few as its sum of bytes asks for. That sum is
of all stages together; in a pipeline one stage may have all the blocks that take most. At a price, blocks that are alike have
one layout, and what a stage needs follows from it. Of two such strategies, those between them are the least at the price at
which the two cost the same, so that few are looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from autosbp.search._base import Costs, SearchProblem, SearchResult, memory_of

MOST_PRICES = 10
"""Prices that are tried."""
LEAN = 1e9
"""Times the seconds for a byte that a strategy takes: so many that none gives up a byte for time."""
Solve = Callable[[SearchProblem], SearchResult]


def at_price(problem: SearchProblem, price: float, solve: Solve) -> SearchResult:
    """The least of seconds and ``price`` for each byte, without the memory limit; ``cost_s`` is what it costs itself."""
    known: dict[tuple[int, int], Costs] = {}
    unary = tuple(
        known.setdefault((id(costs), id(use)), costs + price * use)
        for costs, use in zip(problem.unary_s, problem.memory_bytes, strict=True)
    )
    found = solve(replace(problem, unary_s=unary, memory_limit_bytes=None))
    memory = memory_of(problem, found.assignment)
    paid = price * (memory - problem.fixed_memory_bytes)
    return replace(found, cost_s=found.cost_s - paid, memory_bytes=memory, certificate=None)


def quickest_with_room(problem: SearchProblem, solve: Solve, is_too_large: Callable[[SearchResult], bool]) -> None:
    """Ask of ever fewer layouts whether they are too large, the last time of the quickest that are not, where there are any.

    Args:
        solve: a problem without a memory limit, to its optimum.
        is_too_large: of what was found at some price. Where it is not, nothing leaner is asked for.
    """
    large = at_price(problem, 0.0, solve)
    if not is_too_large(large):
        return
    small = at_price(problem, LEAN * large.cost_s / max(large.memory_bytes, 1), solve)
    asked = False  # of the small one
    for _ in range(MOST_PRICES):
        saved = large.memory_bytes - small.memory_bytes
        if saved <= 0:
            return
        found = at_price(problem, (small.cost_s - large.cost_s) / saved, solve)
        is_last = not small.memory_bytes < found.memory_bytes < large.memory_bytes  # nothing is between them
        if is_last and asked:
            return
        found = small if is_last else found
        if not is_too_large(found):
            small, asked = found, True
        elif not is_last:
            large = found
        if is_last:
            return
