"""The searcher for those who do not want to choose."""

from __future__ import annotations

from autosbp.search._base import SearchOptions, SearchProblem, SearchResult
from autosbp.search.searchers.anytime.searcher import anytime
from autosbp.search.searchers.elimination import plan_problem
from autosbp.search.searchers.exact import solve_exactly
from autosbp.search.searchers.exhaustive import exhaustive
from autosbp.search.searchers.pruning import canonical
from autosbp.search.searchers.validate import check_options, validate

TINY = 10_000
MAX_ENTRIES = 400_000_000
"""Of tables: a pass of messages over more takes longer than ``anytime`` takes to begin."""


def auto(problem: SearchProblem, options: SearchOptions) -> SearchResult:
    """``exhaustive`` for tiny spaces, else ``exact``, else ``anytime`` where elimination tables explode even over the values
    that messages leave.

    ``searcher`` in the result names the one that ran. Errors and guarantees are that one's.
    """
    validate(problem)
    check_options(problem, options)
    if problem.num_assignments <= TINY:
        return exhaustive(problem, options)
    whole = canonical(problem)
    if sum(edge.table.size for edge in whole.problem.edges) > MAX_ENTRIES and not plan_problem(whole.problem).is_exact:
        return anytime(problem, options)
    return solve_exactly(problem, options, whole, anytime)
