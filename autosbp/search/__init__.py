"""Search for the cheapest parallelization plan of a graph on a cluster, with a proof of its quality.

| module | contents |
|---|---|
| ``_base``, ``certificate`` | ``SearchProblem``, the contract of a searcher, the certificate of its result |
| ``solvers`` | one searcher a file; they know the problem alone |
| ``checker`` | recomputes cost and bound of a certificate; shares no code with the searchers |
| ``problem`` | from a graph, a mesh and a cost model to a search problem, and back to a strategy |
| ``stages`` | layout problem of a pipeline stage, cut points, schedules |
| ``bounds`` | lower bounds on the step time of a pipeline structure |
| ``branch_and_bound`` | search over pipeline structures, microbatch sizes and parameter shardings |
| ``planner``, ``plan_options`` | ``make_plan``: from a request to a plan document |
| ``why``, ``what_if``, ``pareto``, ``device_count``, ``warm_start`` | further questions about a plan |

The searchers:

| name | method | proves |
|---|---|---|
| exhaustive | every assignment | the optimum |
| random | uniform samples | nothing |
| metropolis_hastings | annealed sampling, one variable at a time | nothing |
| coordinate_descent | best value per variable in turn, restarts | nothing |
| exact | variable elimination, Lagrangian bounds, CP-SAT | the optimum, or a bound |
| anytime | annealing of single choices and whole trees, message passing, branch and bound | a bound |
| auto | the first applicable of exhaustive, exact, anytime | the same as the searcher it runs |
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from autosbp.errors import InputError
from autosbp.search._base import (
    Bytes,
    Costs,
    Edge,
    Searcher,
    SearchOptions,
    SearchProblem,
    SearchResult,
    cost_of,
    memory_of,
)
from autosbp.search.certificate import Certificate
from autosbp.search.checker import check_certificate
from autosbp.search.solvers.anytime.searcher import anytime
from autosbp.search.solvers.auto import auto
from autosbp.search.solvers.coordinate_descent import coordinate_descent
from autosbp.search.solvers.exact import exact
from autosbp.search.solvers.exhaustive import exhaustive
from autosbp.search.solvers.metropolis_hastings import metropolis_hastings
from autosbp.search.solvers.random_sampling import random
from autosbp.search.solvers.validate import check_options, validate

SEARCHERS: Mapping[str, Searcher] = MappingProxyType(
    {
        "auto": auto,
        "exact": exact,
        "anytime": anytime,
        "exhaustive": exhaustive,
        "coordinate_descent": coordinate_descent,
        "metropolis_hastings": metropolis_hastings,
        "random": random,
    }
)


def search(problem: SearchProblem, searcher: str = "auto", options: SearchOptions | None = None) -> SearchResult:
    """Run a searcher on a problem.

    Args:
        problem: the weighted constraint graph, see ``search._base``.
        searcher: a key of ``SEARCHERS``.
        options: the defaults of ``SearchOptions`` if None.

    Raises:
        InputError: unknown searcher, or problem or options that ``validate`` or ``check_options`` reject.
        InfeasibleError: no assignment is feasible, or the searcher found none.
    """
    if searcher not in SEARCHERS:
        raise InputError("searcher", searcher, f"expected one of {', '.join(SEARCHERS)}")
    return SEARCHERS[searcher](problem, options or SearchOptions())


__all__ = [
    "SEARCHERS",
    "Bytes",
    "Certificate",
    "Costs",
    "Edge",
    "SearchOptions",
    "SearchProblem",
    "SearchResult",
    "Searcher",
    "check_certificate",
    "check_options",
    "cost_of",
    "memory_of",
    "search",
    "validate",
]
