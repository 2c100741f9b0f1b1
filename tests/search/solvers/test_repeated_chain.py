"""Runs of equal blocks: found, and eliminated at once, with the optimum of eliminating all variables."""

from __future__ import annotations

import numpy as np
import pytest

from autosbp.search._base import Edge, SearchProblem, cost_of
from autosbp.search.solvers.elimination import minimise, plan_problem
from autosbp.search.solvers.problem_repetition import ProblemRepetition, find_repeats
from autosbp.search.solvers.repeated_chain import Chain

NO_CHAIN = 1 << 24
"""Entries of a table, less than the default: with these, ``plan_problem`` looks for no blocks."""


def stacked(count: int, seed: int, *, joints: int = 1) -> SearchProblem:
    """Two variables outside, of which one touches both ends, then blocks of four; neighbours share ``joints`` variables."""
    rng = np.random.default_rng(seed)
    sizes = (4, 3, 5, 4)

    def table(rows: int, columns: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        found = rng.random((rows, columns))
        found[rng.random(found.shape) < 0.1] = np.inf
        return found

    unary = [rng.random(size) for size in sizes]
    memory = [rng.integers(0, 9, size) for size in sizes]
    inner = {(u, v): table(sizes[u], sizes[v]) for u, v in ((0, 1), (1, 2), (0, 3), (2, 3))}
    between = {(3 - at, v): table(sizes[3 - at], sizes[v]) for at in range(joints) for v in (0, 1)}
    names, costs, uses = (
        ["head", "tail"],
        [rng.random(3), rng.random(4)],
        [rng.integers(0, 9, 3), rng.integers(0, 9, 4)],
    )
    edges = [Edge(0, 1, table(3, 4)), Edge(0, 2, table(3, sizes[0]))]
    for block in range(count):
        start = 2 + 4 * block
        names += [f"block{block}.{at}" for at in range(4)]
        costs += unary
        uses += memory
        edges += [Edge(start + u, start + v, found) for (u, v), found in inner.items()]
        if block:
            edges += [Edge(start - 4 + u, start + v, found) for (u, v), found in between.items()]
    edges += [Edge(1, 2 + 4 * count - 1, table(4, sizes[3])), Edge(0, 2 + 4 * count - 1, table(3, sizes[3]))]
    return SearchProblem(tuple(names), tuple(costs), tuple(uses), tuple(edges))


def nothing() -> None:
    """Checks no limits."""


@pytest.mark.parametrize("seed", range(12))
def test_a_run_of_blocks_has_the_optimum_of_all_its_variables(seed: int) -> None:
    problem = stacked(14 + seed, seed)
    chain, program = plan_problem(problem), plan_problem(problem, NO_CHAIN)
    assert isinstance(chain, Chain) and not isinstance(program, Chain)
    count = problem.num_variables
    for prices in ([], [0.1] * count, [0.2] * (count // 3) + [0.05] * (count - count // 3)):
        one, two = (minimise(problem, each, nothing, prices) for each in (chain, program))
        assert one.bound_s == pytest.approx(two.bound_s, rel=1e-12)
        priced = sum(
            price * int(use[value])
            for price, use, value in zip(prices, problem.memory_bytes, one.assignment, strict=False)
        )
        assert cost_of(problem, one.assignment) + priced == pytest.approx(two.bound_s, rel=1e-12)
        assert one.distinct_products < 60


def test_blocks_are_found_where_one_variable_joins_them() -> None:
    found = find_repeats(stacked(20, 0))
    assert isinstance(found, ProblemRepetition)
    assert (found.period, found.joint) == (4, 3)
    assert 2 <= found.start <= 6 and found.count >= 18


def test_blocks_that_several_variables_join_are_left_to_elimination() -> None:
    problem = stacked(20, 0, joints=2)
    assert find_repeats(problem) is None
    assert minimise(problem, plan_problem(problem), nothing).bound_s > 0


def test_one_different_block_ends_a_run() -> None:
    problem = stacked(40, 1)
    unary = list(problem.unary_s)
    unary[2 + 4 * 30] = unary[2 + 4 * 30] + 1.0
    changed = SearchProblem(problem.names, tuple(unary), problem.memory_bytes, problem.edges)
    found = find_repeats(changed)
    assert found is not None and found.end <= 2 + 4 * 30
    one, two = (minimise(changed, plan_problem(changed, entries), nothing) for entries in (1 << 25, NO_CHAIN))
    assert one.bound_s == pytest.approx(two.bound_s, rel=1e-12)
