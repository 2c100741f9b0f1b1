"""The default searcher: chooses an algorithm by the size of the problem."""

from __future__ import annotations

from autosbp.search._base import SearchOptions, SearchProblem, SearchResult
from autosbp.search.solvers.anytime.searcher import anytime
from autosbp.search.solvers.elimination import plan_problem
from autosbp.search.solvers.exact import solve_exactly
from autosbp.search.solvers.exhaustive import exhaustive
from autosbp.search.solvers.reduced_cost_fixing import canonical
from autosbp.search.solvers.validate import check_options, validate

TINY = 10_000
MAX_ENTRIES = 400_000_000
"""Table entries above which a pass of messages takes longer than ``anytime`` takes to start."""


def auto(problem: SearchProblem, options: SearchOptions) -> SearchResult:
    """``exhaustive`` for tiny spaces, else ``exact``; ``anytime`` if elimination tables explode.

    ``anytime`` takes over directly if tables are too large for messages, or after messages if elimination is still too
    large over the values left. ``searcher`` in the result names the one that ran, whose errors and guarantees apply."""
    validate(problem)
    check_options(problem, options)
    if problem.num_assignments <= TINY:
        return exhaustive(problem, options)
    whole = canonical(problem)
    if sum(edge.table.size for edge in whole.problem.edges) > MAX_ENTRIES and not plan_problem(whole.problem).is_exact:
        return anytime(problem, options)
    return solve_exactly(problem, options, whole, anytime)
