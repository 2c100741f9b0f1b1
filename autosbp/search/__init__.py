"""Searchers of a ``SearchProblem``: one contract (``_base``), one file per algorithm.

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
from autosbp.search._anytime.searcher import anytime
from autosbp.search._auto import auto
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
from autosbp.search._coordinate_descent import coordinate_descent
from autosbp.search._exact import exact
from autosbp.search._exhaustive import exhaustive
from autosbp.search._metropolis_hastings import metropolis_hastings
from autosbp.search._random import random
from autosbp.search._validate import check_options, validate
from autosbp.search.certificate import Certificate
from autosbp.search.checker import check_certificate

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
