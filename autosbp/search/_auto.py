"""The searcher for those who do not want to choose."""

from __future__ import annotations

from autosbp.search._anytime.searcher import anytime
from autosbp.search._base import SearchOptions, SearchProblem, SearchResult
from autosbp.search._elimination import plan_problem
from autosbp.search._exact import solve_exactly
from autosbp.search._exhaustive import exhaustive
from autosbp.search._pruning import canonical
from autosbp.search._validate import check_options, validate

TINY = 10_000


def auto(problem: SearchProblem, options: SearchOptions) -> SearchResult:
    """``exhaustive`` for tiny spaces, else ``exact``, else ``anytime`` where elimination tables explode.

    ``searcher`` in the result names the one that ran. Errors and guarantees are that one's.
    """
    validate(problem)
    check_options(problem, options)
    if problem.num_assignments <= TINY:
        return exhaustive(problem, options)
    whole = canonical(problem)
    if plan_problem(whole.problem).is_exact:
        return solve_exactly(problem, options, whole)
    return anytime(problem, options)
