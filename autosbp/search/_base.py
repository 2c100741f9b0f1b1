"""The contract of a searcher.

A ``SearchProblem`` is a weighted constraint graph: one variable per op cluster, whose values are layouts; a unary cost
and a memory use per value; an edge cost table per pair of clusters that exchange a tensor. An assignment costs

    fixed_s + sum_i unary_s[i][x_i] + sum_e table_e[x_u, x_v]      (seconds of one training step)

and its memory ``fixed_memory_bytes + sum_i memory_bytes[i][x_i]`` must not exceed ``memory_limit_bytes``. A table entry
of ``inf`` forbids a pair. Tables are shared: repeated blocks of a model point at the *same* arrays, and searchers may
key caches on array identity.

A searcher is a function ``(problem, options) -> SearchResult``. It is deterministic: unless the time limit strikes, the
same problem and options give the same assignment, cost, bound, evaluations and trace costs on any number of cores. It
checks the cost and memory of every assignment that it returns. It raises ``InfeasibleError`` if it has proved that no
assignment is feasible, or found none within its limits (the detail says which). It stops at ``time_limit_s`` with the
best assignment found, and calls ``progress`` at most every 0.1 s; if ``progress`` returns False, it stops as at the
time limit. Searchers may run in several threads at once.
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
    """Cost table between variables ``u`` and ``v``: ``table[x_u, x_v]`` in seconds. A pair may have several edges."""

    u: int
    v: int
    table: Costs


@dataclass(frozen=True, slots=True, eq=False)
class SearchProblem:
    """Weighted constraint graph, see the module's docstring. ``names[i]`` is the op cluster of variable i."""

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
        """Number of assignments (an exact Python int)."""
        total = 1
        for costs in self.unary_s:
            total *= len(costs)
        return total


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """Limits and hints for a searcher.

    Args:
        seed: of the random number generator.
        time_limit_s: wall clock limit of the search.
        max_evaluations: limit of costed values; None is no limit.
        start: initial assignment, such as a baseline's, for searchers that can use one.
        gap_tolerance: relative gap at which ``exact`` stops closing what the memory limit leaves open.
        cutoff_s: cost that the caller already has; ``exact`` stops once its bound reaches it.
        closing: fraction of the usual work that ``exact`` spends on closing the gap.
        rough: message-passing results suffice for a problem that is hard to eliminate.
    """

    seed: int = 0
    time_limit_s: float = 60.0
    max_evaluations: int | None = None
    start: tuple[int, ...] | None = None
    gap_tolerance: float = 0.0
    cutoff_s: float = float("inf")
    closing: float = 1.0
    rough: bool = False
    progress: Callable[[float, float], bool] | None = None  # (best cost, lower bound) -> whether to continue


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The best assignment found, and a bound on the optimum.

    ``lower_bound_s`` is -inf if the searcher proves nothing. ``gap`` = (cost - bound) / cost, 0 if proved optimal.
    ``trace`` holds (seconds since start, best cost) at each improvement. ``search_s`` is wall clock time. ``checker``
    verifies the bound with ``certificate``; ``exact`` gives one whenever it has a bound.
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
    """Signature of the functions in ``SEARCHERS``."""

    def __call__(self, problem: SearchProblem, options: SearchOptions) -> SearchResult: ...


def cost_of(problem: SearchProblem, assignment: tuple[int, ...]) -> float:
    """Seconds of one step under ``assignment``; the reference definition for every searcher."""
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
