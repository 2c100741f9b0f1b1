"""Search: the cheapest plan of a graph on a cluster, and the proof of it.

| where | what |
|---|---|
| ``_base``, ``certificate`` | what a ``SearchProblem`` is, what a searcher promises, what it claims of its result |
| ``searchers`` | one file each; they know the problem alone |
| ``checker`` | recomputes cost and bound of a certificate; shares no code with the searchers |
| ``problem`` | from a graph, a mesh and a cost model to a problem, and back to a strategy |
| ``stages`` | the layout problem of a stage of the pipeline, cuts, schedules |
| ``bounds`` | what no strategy of a structure takes less than |
| ``space`` | all structures, microbatches and ways to store, searched as bounds ask for |
| ``planner``, ``plan_options`` | ``make_plan``: all of it, from a request to a document |
| ``why``, ``what_if``, ``pareto``, ``fewer``, ``warm_start`` | what else is asked of a plan |

The searchers:

| name | what it does | proves |
|---|---|---|
| exhaustive | every assignment | the optimum |
| random | uniform samples | nothing |
| metropolis_hastings | annealed sampling, one variable at a time | nothing |
| coordinate_descent | best value per variable in turn, restarts | nothing |
| exact | variable elimination, Lagrangian bounds, CP-SAT | the optimum, or a bound |
| anytime | annealing of single choices and whole trees, message passing, branch and bound | a bound |
| auto | the first that fits of exhaustive, exact, anytime | as that one |
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
from autosbp.search.searchers.anytime.searcher import anytime
from autosbp.search.searchers.auto import auto
from autosbp.search.searchers.coordinate_descent import coordinate_descent
from autosbp.search.searchers.exact import exact
from autosbp.search.searchers.exhaustive import exhaustive
from autosbp.search.searchers.metropolis_hastings import metropolis_hastings
from autosbp.search.searchers.random import random
from autosbp.search.searchers.validate import check_options, validate

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
    """Run the searcher of this name.

    Raises:
        InputError: no such searcher, or a problem or options that ``validate`` and ``check_options`` refuse.
        InfeasibleError: no assignment is feasible, or none was met.
    """
    if searcher not in SEARCHERS:
        raise InputError("searcher", searcher, f"one of {', '.join(SEARCHERS)} is needed")
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
