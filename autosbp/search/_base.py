"""The contract of a searcher.

A ``SearchProblem`` is a weighted constraint graph: one variable per op cluster, whose values are layouts; a unary cost
and a memory use per value; an edge cost table per pair of clusters that exchange a tensor. An assignment costs

    fixed_s + sum_i unary_s[i][x_i] + sum_e table_e[x_u, x_v]      (seconds of one training step)

and its memory ``fixed_memory_bytes + sum_i memory_bytes[i][x_i]`` must not exceed ``memory_limit_bytes``. A table entry of
``inf`` forbids a pair. Tables are shared: repeated blocks of a model point at the *same* arrays, and searchers may key
caches on array identity.

A searcher is a function ``(problem, options) -> SearchResult``. It is deterministic: same problem and options, same
assignment, cost, bound, evaluations and costs of the trace, as long as the time limit does not strike, and however many cores
there are. It never returns an assignment whose cost or memory it did not check.
It raises ``InfeasibleError`` when it has proved that no assignment is feasible, or found none within its limits (the
detail says which). It stops at ``time_limit_s`` with the best so far, and calls ``progress`` at most every 0.1 s; when
``progress`` returns False it stops as at the time limit. Safe to call from several threads at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from autosbp.search.certificate import Certificate

Costs = NDArray[np.float64]
Bytes = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Edge:
    """Cost table between variables ``u`` and ``v``: ``table[x_u, x_v]`` in seconds. Several edges may join one pair."""

    u: int
    v: int
    table: Costs


@dataclass(frozen=True, slots=True, eq=False)
class SearchProblem:
    """See the module's docstring. ``names[i]`` tells which op cluster variable i is."""

    names: tuple[str, ...]
    unary_s: tuple[Costs, ...]
    memory_bytes: tuple[Bytes, ...]
    edges: tuple[Edge, ...]
    memory_limit_bytes: int | None = None
    fixed_s: float = 0.0
    fixed_memory_bytes: int = 0

    @property
    def num_variables(self) -> int:
        return len(self.names)

    @property
    def num_assignments(self) -> int:
        """Size of the whole space (an exact Python int)."""
        total = 1
        for costs in self.unary_s:
            total *= len(costs)
        return total


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """``start`` is an assignment to start from (such as a baseline's), where a searcher can use one; ``gap_tolerance``
    the relative gap at which ``exact`` stops trying to close what memory limits leave open; ``cutoff_s`` a cost that
    the caller already has: ``exact`` stops once its bound shows that nothing is below it; ``closing`` the part of the usual
    work that ``exact`` puts into what is open then. ``rough``: what messages say of a problem that is hard to eliminate is
    enough."""

    seed: int = 0
    time_limit_s: float = 60.0
    max_evaluations: int | None = None
    start: tuple[int, ...] | None = None
    gap_tolerance: float = 0.0
    cutoff_s: float = float("inf")
    closing: float = 1.0
    rough: bool = False
    progress: Callable[[float, float], bool] | None = None  # (best cost, lower bound) -> go on?


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The best assignment found, and what is known about the optimum.

    ``lower_bound_s`` is -inf where the searcher proves nothing; ``gap`` = (cost - bound) / cost, 0 when proved optimal.
    ``trace`` holds (seconds since start, best cost) at each improvement. ``search_s`` is wall time. ``certificate`` is what
    ``checker`` verifies the bound with; ``exact`` gives one wherever it has a bound.
    """

    assignment: tuple[int, ...]
    cost_s: float
    memory_bytes: int
    lower_bound_s: float
    gap: float
    evaluations: int
    trace: tuple[tuple[float, float], ...]
    search_s: float
    searcher: str
    stopped: str = "done"  # "done", "time_limit", "max_evaluations" or "cancelled"
    info: dict[str, float] = field(default_factory=dict)
    certificate: Certificate | None = None


class Searcher(Protocol):
    """What ``SEARCHERS[name]`` is."""

    def __call__(self, problem: SearchProblem, options: SearchOptions) -> SearchResult: ...


def cost_of(problem: SearchProblem, assignment: tuple[int, ...]) -> float:
    """Seconds of one step under ``assignment``; the definition that every searcher is checked against."""
    total = problem.fixed_s
    for costs, value in zip(problem.unary_s, assignment, strict=True):
        total += float(costs[value])
    for edge in problem.edges:
        total += float(edge.table[assignment[edge.u], assignment[edge.v]])
    return total


def memory_of(problem: SearchProblem, assignment: tuple[int, ...]) -> int:
    """Bytes per device under ``assignment``."""
    return problem.fixed_memory_bytes + sum(
        int(use[value]) for use, value in zip(problem.memory_bytes, assignment, strict=True)
    )
