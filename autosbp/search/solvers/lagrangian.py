"""Memory limits: Lagrangian bounds, and the least memory that would suffice."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from autosbp.search._base import Costs, Edge, SearchProblem, cost_of, memory_of
from autosbp.search.solvers.elimination import Solution, minimise, plan_problem
from autosbp.search.solvers.elimination_order import EliminationProgram
from autosbp.search.solvers.repeated_chain import Chain

MAX_CUTS = 60
ROUNDING_RELATIVE = 1e-12  # of a bound: more than its additions can lose by rounding
CUT_RELATIVE = 1e-11
MULTIPLIER_SPREADS = (1e-4, 0.1)
RelaxationSolver = Callable[[Sequence[float]], Solution]
"""Solves a relaxation at one Lagrange multiplier of memory per variable.

Returns the least penalised cost without ``fixed_s``, or a bound of it, and an assignment that attains it, at least
nearly."""
IncumbentCallback = Callable[[tuple[int, ...], float, float], tuple[int, ...] | None]
"""Takes a minimiser of the relaxation, the bound at its multiplier (-inf for none), and the multiplier.

Returns the best feasible assignment known."""


@dataclass(frozen=True, slots=True)
class LagrangianBound:
    """Best ``bound_s`` found and the Lagrange multiplier ``price_s_per_byte`` that gives it."""

    bound_s: float
    price_s_per_byte: float
    distinct_products: int
    operations: int
    evaluations: int


def least_memory(problem: SearchProblem, check: Callable[[], None]) -> Solution:
    """An assignment without forbidden entries that takes the least memory; ``bound_s`` holds its bytes.

    Exact (``bound_s`` is inf if everything is forbidden), or a lower bound if an elimination table had to be split.
    Edges that forbid nothing couple nothing and are left out. Exact in float64 below 2**53 bytes."""
    done: dict[int, Costs] = {}

    def zeros(costs: Costs) -> Costs:
        if id(costs) not in done:
            done[id(costs)] = np.where(np.isinf(costs), np.inf, 0.0)
        return done[id(costs)]

    binding = tuple(Edge(e.u, e.v, zeros(e.table)) for e in problem.edges if np.isinf(e.table).any())
    relaxed = replace(problem, unary_s=tuple(zeros(costs) for costs in problem.unary_s), edges=binding)
    return minimise(relaxed, plan_problem(relaxed), check, [1.0] * problem.num_variables)


def quick_bound(problem: SearchProblem, check: Callable[[], None]) -> float:
    """A lower bound in seconds from the minima of single tables, for searches that stop early."""
    known: dict[int, float] = {}
    least = []
    for array in (*problem.unary_s, *(edge.table for edge in problem.edges)):
        if id(array) not in known:
            check()
            known[id(array)] = float(array.min())
        least.append(known[id(array)])
    return rounded_down_sum(problem.fixed_s, *least)


def rounded_down_sum(*parts: float) -> float:
    """The sum, reduced by what rounding may have added."""
    total = math.fsum(parts) if all(map(math.isfinite, parts)) else math.inf
    return total - ROUNDING_RELATIVE * sum(map(abs, parts)) if math.isfinite(total) else total


def by_elimination(
    problem: SearchProblem, program: EliminationProgram | Chain, check: Callable[[], None]
) -> RelaxationSolver:
    """A relaxation that is solved by elimination."""
    return lambda prices: minimise(problem, program, check, prices)


def solve_dual(problem: SearchProblem, relax: RelaxationSolver, meet: IncumbentCallback) -> LagrangianBound:
    """Maximise ``L(price) = min over x of cost(x) + price * (memory(x) - limit)``, a lower bound for any price >= 0.

    L is the concave lower envelope of one line per assignment. A cutting-plane search takes the crossing of a rising
    line (over the limit) and a falling one (within it), and replaces one of them by the line that is lowest there,
    until none is lower. It ends after finitely many steps.

    Args:
        meet: called with each minimiser, and the bound at its multiplier.
    """
    limit = problem.memory_limit_bytes
    spent = [0, 0, 0]

    def evaluate(price: float) -> tuple[float, tuple[int, ...]]:
        solution = relax([price] * problem.num_variables)
        spent[0] += solution.distinct_products
        spent[1] += solution.operations
        spent[2] += 1
        offset = 0.0 if limit is None else price * (limit - problem.fixed_memory_bytes)
        return rounded_down_sum(problem.fixed_s, solution.bound_s, -offset), solution.assignment

    bound, rising = evaluate(0.0)
    best_price, best_bound = 0.0, bound
    falling = meet(rising, bound, 0.0)
    over = 0 if limit is None else memory_of(problem, rising) - limit
    if math.isinf(bound):
        return LagrangianBound(bound, 0.0, *spent)
    while limit is not None and over > 0 and falling is not None and spent[2] < MAX_CUTS:
        rise, fall = lagrangian_line(problem, rising, limit), lagrangian_line(problem, falling, limit)
        if rise[1] <= fall[1]:
            break
        price = (fall[0] - rise[0]) / (rise[1] - fall[1])
        crossing = rise[0] + price * rise[1]
        if not price > 0.0:
            break
        bound, lowest = evaluate(price)
        meet(lowest, bound, price)
        if bound > best_bound:
            best_bound, best_price = bound, price
        size = abs(rise[0]) + abs(price * rise[1]) + abs(fall[0])
        if bound >= crossing - CUT_RELATIVE * size or lowest in (rising, falling):
            break
        if memory_of(problem, lowest) > limit:
            rising = lowest
        else:
            falling = lowest
    return LagrangianBound(best_bound, best_price, *spent)


def search_mixed_multipliers(
    problem: SearchProblem, relax: RelaxationSolver, price_s_per_byte: float, meet: IncumbentCallback
) -> None:
    """Find assignments between the one just over the limit and the one just within it, and pass them to ``meet``.

    At the best multiplier, all copies of a repeated block switch from a fast to a lean layout together, so the
    minimisers of the relaxation lie far on either side of the limit. A higher multiplier on the first variables than on
    the others breaks this symmetry: blocks before the break become lean, those after it stay fast. Bisection over the
    break finds the first place where the whole fits, once for a small and once for a large difference of multipliers:
    the large one outweighs the boxing cost between the two kinds of blocks."""
    limit = problem.memory_limit_bytes
    if limit is None or price_s_per_byte <= 0.0:
        return
    count = problem.num_variables
    for split in MULTIPLIER_SPREADS:
        lean, fast = price_s_per_byte * (1.0 + split), price_s_per_byte * (1.0 - split)
        fits, exceeds = count, 0
        while fits - exceeds > 1:
            middle = (fits + exceeds) // 2
            solution = relax([lean] * middle + [fast] * (count - middle))
            meet(solution.assignment, -math.inf, 0.0)
            if memory_of(problem, solution.assignment) <= limit:
                fits = middle
            else:
                exceeds = middle


def splice(problem: SearchProblem, before: tuple[int, ...], behind: tuple[int, ...]) -> tuple[int, ...] | None:
    """The cheapest fitting assignment among ``before[:t] + behind[t:]`` over all t; None if none fits."""
    count = problem.num_variables
    costs = np.zeros(count + 1)  # by t
    memory = np.full(count + 1, problem.fixed_memory_bytes, dtype=np.int64)
    for i, (own, use) in enumerate(zip(problem.unary_s, problem.memory_bytes, strict=True)):
        costs[: i + 1] += own[behind[i]]
        costs[i + 1 :] += own[before[i]]
        memory[: i + 1] += use[behind[i]]
        memory[i + 1 :] += use[before[i]]
    for edge in problem.edges:
        u, v = sorted((edge.u, edge.v))
        table = edge.table if edge.u < edge.v else edge.table.T
        costs[: u + 1] += table[behind[u], behind[v]]
        costs[u + 1 : v + 1] += table[before[u], behind[v]]
        costs[v + 1 :] += table[before[u], before[v]]
    if problem.memory_limit_bytes is not None:
        costs[memory > problem.memory_limit_bytes] = np.inf
    best = int(costs.argmin())
    return (*before[:best], *behind[best:]) if np.isfinite(costs[best]) else None


def lagrangian_line(problem: SearchProblem, assignment: tuple[int, ...], limit: int) -> tuple[float, int]:
    """Cost, and bytes over the limit: the line of L that this assignment contributes."""
    return cost_of(problem, assignment), memory_of(problem, assignment) - limit
