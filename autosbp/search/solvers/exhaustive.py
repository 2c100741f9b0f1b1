"""Exhaustive enumeration of all assignments that may be as good as a known one, in vectorised chunks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from autosbp.errors import InfeasibleError, InputError
from autosbp.search._base import Costs, SearchOptions, SearchProblem, SearchResult
from autosbp.search.solvers.conditional_costs import Neighbourhood
from autosbp.search.solvers.coordinate_descent import cheapest_values, descend
from autosbp.search.solvers.parallel_restarts import run_parts
from autosbp.search.solvers.reduced_cost_fixing import ReducedProblem, canonical, prune
from autosbp.search.solvers.solver_state import SolverState, all_forbidden_error

Number = TypeVar("Number", np.float64, np.int64)

MAX_ASSIGNMENTS = 500_000_000
CHUNK = 1 << 17
PARTS = 64
MAX_DIMS = 30  # numpy's flat iterators end at 32
MAX_SHOWN_HOURS_LOG10 = 6  # as a power of ten; longer times are shown as one
ASSIGNMENTS_PER_S = 1e8
"""Approximate number of assignments costed per second."""


def exhaustive(problem: SearchProblem, options: SearchOptions) -> SearchResult:
    """Cost every assignment and return the first of the cheapest in lexicographic order (AutoDDL, section 4.6).

    First removes values that only assignments can hold that cost more than one found by descent
    (``reduced_cost_fixing``). Proves the optimum (gap 0) unless it is stopped. ``evaluations`` counts assignments.

    Raises:
        InputError: more than ``MAX_ASSIGNMENTS`` assignments are left; says how long they would take.
        InfeasibleError: no assignment is feasible (proved; ``needed`` is the exact least memory), or none was found.
    """
    run = SolverState("exhaustive", problem, options)
    left = _reduced_problem(run)
    problem = left.problem
    size = problem.num_assignments
    if size > MAX_ASSIGNMENTS:
        most = f"exhaustive search supports about 10^{math.log10(MAX_ASSIGNMENTS):.1f} assignments"
        long = f"this problem has 10^{math.log10(size):.1f}, which would take about {_format_duration(size)}"
        raise InputError("searcher", "exhaustive", f"{most}; {long}")
    split, chunk = problem.num_variables, 1
    while split > 0 and problem.num_variables - split < MAX_DIMS and chunk * len(problem.unary_s[split - 1]) <= CHUNK:
        split -= 1
        chunk *= len(problem.unary_s[split])
    block = _Block(problem, split)
    prefixes = size // chunk
    of_part = -(-prefixes // PARTS)

    def part(at: int, own: SolverState) -> float:
        every = itertools.product(*(range(len(costs)) for costs in problem.unary_s[:split]))
        return _enumerate(block, left, itertools.islice(every, at * of_part, (at + 1) * of_part), own)

    least_memory = min(run_parts(run, part, -(-prefixes // of_part)), default=math.inf)
    if run.stopped == "done":
        if run.best is None and problem.memory_limit_bytes is not None and math.isfinite(least_memory):
            raise InfeasibleError("memory_limit_bytes", problem.memory_limit_bytes, least_memory)
        if run.best is None:
            raise all_forbidden_error()
        run.raise_bound(run.cost_s)
    return run.result()


def _reduced_problem(run: SolverState) -> ReducedProblem:
    """The problem without values that only assignments worse than descent's can hold; unchanged if descent found no fit."""
    whole = canonical(run.problem)
    if run.problem.num_assignments <= CHUNK:
        return whole
    near = Neighbourhood.of(run.problem)
    probe = SolverState("exhaustive", run.problem, run.options)
    descend(near, cheapest_values(near), probe)
    return whole if probe.best is None else prune(whole, probe.cost_s)


def _format_duration(size: int) -> str:
    """Time that ``size`` assignments take, in words."""
    hours = math.log10(size) - math.log10(ASSIGNMENTS_PER_S * 3600)
    if hours < 0:
        return f"{size / ASSIGNMENTS_PER_S:.2g} s"
    return f"{10**hours:.2g} hours" if hours < MAX_SHOWN_HOURS_LOG10 else f"10^{hours:.0f} hours"


def _enumerate(block: _Block, left: ReducedProblem, prefixes: Iterable[tuple[int, ...]], run: SolverState) -> float:
    """Offer ``run`` the first of the cheapest of these chunks; returns the least memory seen that exceeds the limit."""
    limit = math.inf if run.problem.memory_limit_bytes is None else run.problem.memory_limit_bytes
    best, least_memory = math.inf, math.inf
    for prefix in prefixes:
        if run.should_stop():
            break
        costs = block.costs(prefix)
        run.evaluations += costs.size
        if block.greatest_memory(prefix) > limit:
            memory = block.memory(prefix)
            finite = np.isfinite(costs)
            if finite.any():
                least_memory = min(least_memory, float(memory[finite].min()))
            costs = np.where(memory <= limit, costs, np.inf)
        first = int(costs.argmin())
        if costs.flat[first] < best:
            best = float(costs.flat[first])
            run.offer(left.lift(prefix + tuple(int(x) for x in np.unravel_index(first, costs.shape))))
            run.evaluations -= 1  # already counted with the chunk
    return least_memory


class _Block:
    """All assignments of the variables from ``split`` on, as one array with a dim per variable."""

    def __init__(self, problem: SearchProblem, split: int) -> None:
        self._problem, self._split = problem, split
        self._rank = problem.num_variables - split
        shape = tuple(len(costs) for costs in problem.unary_s[split:])
        self._inner: Costs = np.zeros(shape)
        self._memory: NDArray[np.int64] = np.zeros(shape, dtype=np.int64)
        for i in range(split, problem.num_variables):
            self._inner += self._spread(problem.unary_s[i], i)
            self._memory += self._spread(problem.memory_bytes[i], i)
        self._greatest = int(self._memory.max())
        self._outer_edges = [e for e in problem.edges if e.u < split and e.v < split]
        self._crossing = [e for e in problem.edges if (e.u < split) != (e.v < split)]
        for edge in problem.edges:
            if edge.u >= split and edge.v >= split:
                table = edge.table if edge.u < edge.v else edge.table.T
                self._inner += self._spread(table, min(edge.u, edge.v), max(edge.u, edge.v))

    def _spread(self, array: NDArray[Number], *variables: int) -> NDArray[Number]:
        shape = [1] * self._rank
        for dim, variable in enumerate(variables):
            shape[variable - self._split] = array.shape[dim]
        return array.reshape(shape)

    def costs(self, prefix: tuple[int, ...]) -> Costs:
        """Costs of all assignments that begin with ``prefix``."""
        problem, split = self._problem, self._split
        if not prefix:
            return self._inner + problem.fixed_s
        base = problem.fixed_s + sum(float(problem.unary_s[i][x]) for i, x in enumerate(prefix))
        base += sum(float(e.table[prefix[e.u], prefix[e.v]]) for e in self._outer_edges)
        lines: dict[int, Costs] = {}
        for edge in self._crossing:
            if edge.u < split:
                inner, line = edge.v, edge.table[prefix[edge.u]]
            else:
                inner, line = edge.u, edge.table[:, prefix[edge.v]]
            lines[inner] = lines[inner] + line if inner in lines else line
        total = self._inner + base
        # Small outer sums first: full-size additions dominate the time.
        partial: Costs | None = None
        for variable in sorted(lines, reverse=True):
            spread = self._spread(lines[variable], variable)
            partial = spread if partial is None else partial + spread
        return total if partial is None else total + partial

    def _outer_memory(self, prefix: tuple[int, ...]) -> int:
        return self._problem.fixed_memory_bytes + sum(
            int(use[x]) for use, x in zip(self._problem.memory_bytes, prefix, strict=False)
        )

    def memory(self, prefix: tuple[int, ...]) -> NDArray[np.int64]:
        return self._memory + self._outer_memory(prefix)

    def greatest_memory(self, prefix: tuple[int, ...]) -> int:
        return self._greatest + self._outer_memory(prefix)
