"""The anytime searcher on problems whose optimum enumeration knows, memory at many instants among them."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest

from autosbp.errors import InfeasibleError
from autosbp.search import Edge, SearchOptions, SearchProblem, search
from autosbp.search.solvers.anytime.active_memory_constraints import exceeded_instants
from autosbp.search.solvers.anytime.assignment import state_of
from autosbp.search.solvers.anytime.cost_network import lay_out
from autosbp.search.solvers.anytime.interval_problem import Floats, Interval, IntervalProblem
from autosbp.search.solvers.anytime.lagrangian_bound import PricedBound
from autosbp.search.solvers.anytime.milp import prove
from autosbp.search.solvers.anytime.node_contraction import contract, with_tables_folded
from autosbp.search.solvers.anytime.reduction import reduce_problem
from autosbp.search.solvers.anytime.solver import AnytimeSolver, BestAssignment
from autosbp.testing.searcher_conformance import random_problem

pytestmark = pytest.mark.integration

INSTANTS = 12


def interval_case(seed: int, nodes: int = 7) -> IntervalProblem:
    """Integer costs, several intervals a node, edges that imply each other among others, and a limit that binds."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(2, 4, nodes)
    costs = [rng.integers(0, 100, size).astype(float) for size in sizes]
    usages: list[dict[Interval, Floats]] = []
    for size in sizes:
        begins = rng.integers(0, INSTANTS, 2)
        usages.append({(int(b), int(b + rng.integers(1, INSTANTS))): rng.integers(0, 50, size) * 1.0 for b in begins})
    tables: dict[tuple[int, int], Floats] = {}
    for u, v in itertools.combinations(range(nodes), 2):
        if rng.random() < 0.4:
            table = rng.integers(0, 100, (sizes[u], sizes[v])) * 1.0
            if sizes[u] == sizes[v] and rng.random() < 0.4:
                table[~np.eye(sizes[u], dtype=bool)[rng.permutation(sizes[u])]] = np.inf
            tables[u, v] = table
    most = np.zeros(3 * INSTANTS)
    least = np.zeros(3 * INSTANTS)
    for usage in usages:
        for (begin, end), use in usage.items():
            most[begin:end] += use.max()
            least[begin:end] += use.min()
    return IntervalProblem(costs, usages, tables, float(least.max() + rng.random() * (most.max() - least.max())))


def brute_force(problem: IntervalProblem) -> tuple[float, tuple[int, ...] | None]:
    best: tuple[float, tuple[int, ...] | None] = (np.inf, None)
    for x in itertools.product(*(range(len(costs)) for costs in problem.costs)):
        cost = sum(costs[value] for costs, value in zip(problem.costs, x, strict=True))
        cost += sum(table[x[u], x[v]] for (u, v), table in problem.tables.items())
        if cost < best[0] and fullest(problem, x) <= problem.limit:
            best = cost, x
    return best


def fullest(problem: IntervalProblem, x: tuple[int, ...]) -> float:
    filled = np.zeros(problem.num_instants + 1)
    for usage, value in zip(problem.usages, x, strict=True):
        for (begin, end), use in usage.items():
            filled[begin:end] += use[value]
    return float(filled.max())


def never(_: BestAssignment) -> bool:
    return False


def solved(problem: IntervalProblem) -> tuple[float, BestAssignment]:
    """The exact cost of what the solver found; inf where it proved that there is nothing."""
    try:
        core = reduce_problem(problem)
    except InfeasibleError:
        return np.inf, BestAssignment(None, np.inf, np.inf)
    found = AnytimeSolver(core.problem, 0, time.monotonic() + 60.0, never).run()
    if found.x is None:
        assert found.infeasible
        return np.inf, found
    x = tuple(core.expand(found.x))
    assert fullest(problem, x) <= problem.limit
    cost = sum(costs[value] for costs, value in zip(problem.costs, x, strict=True))
    return cost + sum(table[x[u], x[v]] for (u, v), table in problem.tables.items()), found


def test_the_optimum_under_limits_at_many_instants_is_found_and_proved() -> None:
    infeasible = 0
    for seed in range(100):
        problem = interval_case(seed)
        best, _ = brute_force(problem)
        cost, found = solved(problem)
        assert cost == best, seed
        infeasible += not np.isfinite(best)
        assert not np.isfinite(best) or best - 1.0 < found.bound <= best + 1e-6  # costs are integers
    assert 0 < infeasible < 50


def test_mutually_implied_values_are_merged() -> None:
    rng = np.random.default_rng(1)
    follow = np.full((3, 3), np.inf)
    follow[[0, 1, 2], [2, 0, 1]] = [5.0, 6.0, 7.0]
    tables = {(at, at + 1): follow for at in range(9)}
    problem = IntervalProblem([rng.random(3) for _ in range(10)], [{}] * 10, tables, np.inf)
    core = contract(problem)
    assert core.problem.num_nodes == 1
    best, x = brute_force(problem)
    assert core.problem.costs[0].min() == pytest.approx(best)
    assert x == tuple(core.expand(core.problem.costs[0].argmin(keepdims=True)))


def test_bounds_hold_at_every_step_and_prices_raise_them() -> None:
    raised = 0
    for seed in range(40):
        problem = interval_case(seed)
        best, _ = brute_force(problem)
        core = contract(problem)
        if not np.isfinite(best) or not all(map(len, core.problem.costs)):
            continue
        bound = PricedBound(lay_out(with_tables_folded(core.problem)))
        bound.improve(best)
        first = bound.bound
        for _ in range(50):
            bound.improve(best)
            assert bound.bound <= best + 1e-6
        raised += bound.bound > first + 1e-6
    assert raised >= 10


def test_a_state_keeps_costs_and_memory_of_its_moves() -> None:
    problem = next(p for p in map(interval_case, range(40)) if np.isfinite(brute_force(p)[0]))
    core = reduce_problem(problem)
    network = lay_out(with_tables_folded(core.problem))
    x = np.zeros(network.num_nodes, dtype=np.int64)
    state = state_of(network, x)
    assert np.allclose(state.filled, network.filled(x))
    chosen = tuple(core.expand(x))
    cost = sum(costs[value] for costs, value in zip(problem.costs, chosen, strict=True))
    cost += sum(table[chosen[u], chosen[v]] for (u, v), table in problem.tables.items())
    assert state.total[0] == pytest.approx(cost)


def test_dominated_instants_are_dropped_without_violating_the_limit() -> None:
    """What fits at the instants that remain fits at all."""
    for seed in range(60):
        problem = interval_case(seed)
        try:
            core = reduce_problem(problem)
        except InfeasibleError:
            continue
        network = lay_out(with_tables_folded(core.problem))
        assert len(network.base) <= 2 * INSTANTS
        for x in itertools.islice(itertools.product(*map(range, network.num_values.tolist())), 200):
            values = np.array(x, dtype=np.int64)
            fits = fullest(problem, tuple(core.expand(values))) <= problem.limit
            assert fits == (len(exceeded_instants(network, values)) == 0)


def test_branch_and_bound_says_when_nothing_fits() -> None:
    use: dict[Interval, Floats] = {(0, 1): np.array([1.0, 2.0])}
    odd = np.array([[0.0, np.inf], [np.inf, 0.0]])
    even = odd[::-1]
    ring = {(0, 1): odd + 0.0, (1, 2): odd + 0.0, (0, 2): even + 0.0}
    network = lay_out(with_tables_folded(IntervalProblem([np.zeros(2)] * 3, [use] * 3, ring, np.inf)))
    assert prove(network, np.inf, time.monotonic() + 10.0).infeasible


def test_a_graph_too_dense_for_elimination_is_annealed_and_bounded() -> None:
    rng = np.random.default_rng(3)
    count, size = 60, 6
    tables = [rng.random((size, size)) for _ in range(20)]
    edges = [Edge(u, v, tables[(u * v) % 20]) for u, v in itertools.combinations(range(count), 2)]
    unary = tuple(rng.random(size) for _ in range(count))
    use = tuple(rng.integers(0, 100, size) for _ in range(count))
    dense = SearchProblem(tuple(map(str, range(count))), unary, use, tuple(edges), memory_limit_bytes=25 * count)
    found = search(dense, "anytime", SearchOptions(time_limit_s=8.0))
    other = search(dense, "coordinate_descent", SearchOptions(max_evaluations=2_000))
    assert -np.inf < found.lower_bound_s <= found.cost_s <= other.cost_s


def test_small_problems_end_proved() -> None:
    for seed in range(20):
        problem = random_problem(np.random.default_rng(seed), memory_share=0.5)
        assert search(problem, "anytime").cost_s == pytest.approx(search(problem, "exact").cost_s, rel=1e-9)
