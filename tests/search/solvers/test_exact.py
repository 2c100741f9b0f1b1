from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from autosbp.errors import InfeasibleError
from autosbp.search import Edge, SearchOptions, SearchProblem, SearchResult, cost_of, search
from autosbp.search.solvers import exact
from autosbp.search.solvers.cost_tables import MIN_ADDITIONS_FOR_THREADS, min_of_sum
from autosbp.search.solvers.cpsat import SatLimits, close_gap
from autosbp.search.solvers.elimination import effort_of, minimise, plan_problem
from autosbp.search.solvers.elimination_order import EliminationProgram
from autosbp.search.solvers.reduced_cost_fixing import canonical, prune
from autosbp.testing.searcher_conformance import check_result, random_problem
from benchmarks.search_blocks import block_problem

pytestmark = pytest.mark.integration


@st.composite
def problems(draw: st.DrawFn) -> SearchProblem:
    return random_problem(
        np.random.default_rng(draw(st.integers(0, 2**32 - 1))),
        num_variables=draw(st.integers(0, 7)),
        max_domain=draw(st.integers(1, 5)),
        edge_probability=draw(st.sampled_from([0.2, 0.5, 1.0])),
        forbidden_probability=draw(st.sampled_from([0.0, 0.1, 0.6])),
        memory_share=draw(st.sampled_from([None, 0.05, 0.3, 0.5])),
    )


def outcome(problem: SearchProblem, searcher: str, options: SearchOptions) -> SearchResult | InfeasibleError:
    try:
        return search(problem, searcher, options)
    except InfeasibleError as error:
        return error


@settings(max_examples=400, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(problem=problems(), start_seed=st.none() | st.integers(0, 99))
def test_exact_equals_exhaustive(problem: SearchProblem, start_seed: int | None) -> None:
    start = None
    if start_seed is not None:
        rng = np.random.default_rng(start_seed)
        start = tuple(int(rng.integers(len(costs))) for costs in problem.unary_s)
    truth = outcome(problem, "exhaustive", SearchOptions())
    found = outcome(problem, "exact", SearchOptions(start=start))
    if isinstance(truth, InfeasibleError):
        assert isinstance(found, InfeasibleError)
        assert (found.constraint, found.limit, found.needed) == (truth.constraint, truth.limit, truth.needed)
        return
    assert isinstance(found, SearchResult)
    check_result(problem, found)
    assert found.cost_s == pytest.approx(truth.cost_s, rel=1e-9)
    assert found.gap == 0.0


def blocks(num_blocks: int, domain: int = 6, seed: int = 0) -> SearchProblem:
    return block_problem(num_blocks, 6, domain, seed)


def dense(num_variables: int, domain: int) -> SearchProblem:
    """Every pair coupled: elimination tables grow with the number of variables."""
    rng = np.random.default_rng(0)
    return SearchProblem(
        names=tuple(f"v{i}" for i in range(num_variables)),
        unary_s=tuple(rng.random(domain) for _ in range(num_variables)),
        memory_bytes=(np.zeros(domain, dtype=np.int64),) * num_variables,
        edges=tuple(
            Edge(u, v, rng.random((domain, domain))) for u, v in itertools.combinations(range(num_variables), 2)
        ),
    )


def test_distinct_products_grow_with_the_logarithm_of_repeats() -> None:
    products = [search(blocks(2**k), "exact").info["distinct_products"] for k in (3, 5, 7)]
    assert products[2] - products[1] <= products[1] - products[0] + 4
    assert products[2] <= 4 * 2 * 7


def test_equal_tables_in_separate_arrays_are_shared() -> None:
    problem = blocks(16)
    copied = dataclasses.replace(
        problem,
        unary_s=tuple(costs.copy() for costs in problem.unary_s),
        memory_bytes=tuple(use.copy() for use in problem.memory_bytes),
        edges=tuple(Edge(e.u, e.v, e.table.copy()) for e in problem.edges),
    )
    first, second = search(problem, "exact"), search(copied, "exact")
    assert first.assignment == second.assignment
    assert first.info == second.info


def test_repeated_blocks_cost_what_a_left_to_right_pass_finds() -> None:
    """A chain without skips, against the textbook dynamic program."""
    rng = np.random.default_rng(3)
    unary, table = rng.random(9), rng.random((9, 9))
    length = 64
    problem = SearchProblem(
        names=tuple(f"v{i}" for i in range(length)),
        unary_s=(unary,) * length,
        memory_bytes=(np.zeros(9, dtype=np.int64),) * length,
        edges=tuple(Edge(i, i + 1, table) for i in range(length - 1)),
    )
    best = unary
    for _ in range(length - 1):
        best = (best[:, None] + table).min(axis=0) + unary
    result = search(problem, "exact")
    assert result.cost_s == pytest.approx(best.min(), rel=1e-12)
    assert result.gap == 0.0


def test_ties_go_to_the_lowest_values() -> None:
    flat = blocks(3)
    flat = dataclasses.replace(
        flat,
        unary_s=(np.ones(6),) * flat.num_variables,
        edges=tuple(Edge(e.u, e.v, np.zeros((6, 6))) for e in flat.edges),
    )
    assert search(flat, "exact", SearchOptions(start=(5,) * flat.num_variables)).cost_s == flat.num_variables
    assert search(flat, "exact").assignment == (0,) * flat.num_variables


@pytest.mark.parametrize("share", [0.5, 0.7, 0.9])
def test_memory_bound_holds_and_is_near_on_repeated_blocks(share: float) -> None:
    """The bound is below the cost, above the unlimited optimum, and a mix of blocks comes within 2 % of it."""
    problem = blocks(24, domain=20)
    free = search(problem, "exact")
    result = search(problem := dataclasses.replace(problem, memory_limit_bytes=int(share * free.memory_bytes)), "exact")
    check_result(problem, result)
    assert free.cost_s <= result.lower_bound_s <= result.cost_s
    assert result.gap < 0.02


def test_a_wide_graph_gets_a_sound_bound() -> None:
    """Tables over 12 variables of 30 values cannot be held: buckets are split, and the gap is shown."""
    problem = dense(12, 30)
    result = search(problem, "exact", SearchOptions(time_limit_s=5.0))
    check_result(problem, result)
    assert -math.inf < result.lower_bound_s < result.cost_s


@pytest.mark.parametrize("max_entries", [1, 5, 25, 10**9])
def test_split_tables_bound_the_optimum_from_below(max_entries: int) -> None:
    problem = dense(6, 5)
    program = plan_problem(problem, max_entries)
    bound = minimise(problem, program, lambda: None).bound_s
    optimum = search(problem, "exhaustive").cost_s
    assert bound <= optimum + 1e-12
    assert program.is_exact == (bound == pytest.approx(optimum, rel=1e-12))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32 - 1), rank=st.integers(1, 4), size=st.integers(1, 40))
def test_chunked_min_of_sum_equals_numpy(seed: int, rank: int, size: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = tuple(int(rng.integers(1, size + 1)) for _ in range(rank))
    arrays = [np.zeros(sizes)]
    for _ in range(3):
        arrays.append(rng.random([sizes[0]] + [s if rng.random() < 0.6 else 1 for s in sizes[1:]]))
    expected = (arrays[1] + arrays[2] + arrays[3] + arrays[0]).min(axis=0)
    np.testing.assert_allclose(min_of_sum(arrays, sizes, lambda: None), expected, rtol=1e-14)


def test_two_threads_halve_a_large_min_of_sum() -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.random(shape) for shape in ((50, 61, 40, 1), (50, 1, 40, 41), (50, 61, 1, 41))]
    assert MIN_ADDITIONS_FOR_THREADS <= 50 * 61 * 40 * 41
    found = min_of_sum(arrays, (50, 61, 40, 41), lambda: None)
    np.testing.assert_allclose(found, (arrays[0] + arrays[1] + arrays[2]).min(axis=0), rtol=1e-14)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32 - 1), share=st.sampled_from([None, 0.3, 0.6]))
def test_cp_sat_closes_to_the_optimum(seed: int, share: float | None) -> None:
    problem = random_problem(np.random.default_rng(seed), forbidden_probability=0.2, memory_share=share)
    truth = outcome(problem, "exhaustive", SearchOptions())
    closed = close_gap(problem, math.inf, None, SatLimits(0, 10.0, 10.0, lambda: False))
    if isinstance(truth, InfeasibleError):
        assert closed is None
        return
    assert closed is not None
    assert closed.assignment is not None
    assert cost_of(problem, closed.assignment) == pytest.approx(truth.cost_s, rel=1e-9)
    assert truth.cost_s * (1 - 1e-9) <= closed.bound_s <= truth.cost_s


def test_cp_sat_closes_what_enumeration_cannot() -> None:
    rng = np.random.default_rng(11)
    problem = random_problem(rng, num_variables=14, max_domain=6, edge_probability=0.2, memory_share=0.3)
    result = search(problem, "exact")
    check_result(problem, result)
    assert result.gap == 0.0


@settings(max_examples=60, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32 - 1), share=st.sampled_from([None, 0.4]), price=st.sampled_from([0.0, 1e-3]))
@example(seed=5977, share=None, price=1e-3)  # a price without a limit would lose it
def test_pruning_never_loses_the_optimum(seed: int, share: float | None, price: float) -> None:
    problem = random_problem(np.random.default_rng(seed), forbidden_probability=0.1, memory_share=share)
    truth = outcome(problem, "exhaustive", SearchOptions())
    if isinstance(truth, InfeasibleError):
        return
    reduced = prune(canonical(problem), truth.cost_s, price)
    kept = search(reduced.problem, "exhaustive")
    assert kept.cost_s == pytest.approx(truth.cost_s, rel=1e-12)
    assert cost_of(problem, reduced.lift(kept.assignment)) == pytest.approx(truth.cost_s, rel=1e-12)
    assert reduced.lower(reduced.lift(kept.assignment)) == kept.assignment


def test_infeasible_memory_names_the_sufficient_limit() -> None:
    """The lean values exclude each other, so the least memory is not the sum of the minima."""
    table = np.array([[math.inf, 0.0], [0.0, 0.0]])
    lean_or_fat = np.array([1, 10])
    problem = SearchProblem(
        ("a", "b"), (np.zeros(2),) * 2, (lean_or_fat,) * 2, (Edge(0, 1, table),), memory_limit_bytes=10
    )
    with pytest.raises(InfeasibleError) as caught:
        search(problem, "exact")
    assert caught.value.needed == 11
    assert search(dataclasses.replace(problem, memory_limit_bytes=11), "exact").memory_bytes == 11


@pytest.mark.parametrize("count", [1, 40, 80])
def test_single_valued_variables_add_no_edges(count: int) -> None:
    """Tables over them would have more dims than numpy's arrays, and couple what they do not couple."""
    rng = np.random.default_rng(count)
    sizes = [3, 2, 4] + [1] * count
    edges = [Edge(u, v, rng.random((sizes[u], sizes[v]))) for u in range(3) for v in range(3, 3 + count)]
    edges += [Edge(v, v + 1, rng.random((1, 1))) for v in range(3, 2 + count)]
    problem = SearchProblem(
        tuple(map(str, range(len(sizes)))), tuple(rng.random(size) for size in sizes),
        tuple(np.zeros(size, dtype=np.int64) for size in sizes), tuple(edges),
    )  # fmt: skip
    program = plan_problem(problem)
    assert isinstance(program, EliminationProgram)
    assert max(len(group.scope) for step in program.steps for group in step.groups) == 0
    found = minimise(problem, program, lambda: None)
    best = min(
        (cost_of(problem, (*values, *[0] * count)), values) for values in itertools.product(*map(range, sizes[:3]))
    )
    assert found.bound_s == pytest.approx(best[0], rel=1e-12) and found.assignment[:3] == best[1]
    check_result(problem, search(problem, "exact"))


def test_eliminations_that_would_keep_too_much_are_split(monkeypatch: pytest.MonkeyPatch) -> None:
    """As tables that are too great by themselves: the bound holds, and may be below the optimum."""
    problem = dense(7, 6)
    effort = effort_of(problem, plan_problem(problem))
    assert effort.entries == sum(6**left for left in range(7)) and effort.additions == 6 * effort.entries
    optimum = search(problem, "exact")
    assert optimum.gap == 0.0
    monkeypatch.setattr(exact, "MAX_KEPT_ENTRIES", effort.entries - 1)
    monkeypatch.setattr(exact, "SPLIT_TABLE_ENTRIES", 6**4)
    monkeypatch.setattr(exact, "ENUMERATE_AT_MOST", 0)
    result = search(problem, "exact")
    check_result(problem, result)
    assert result.lower_bound_s <= optimum.cost_s <= result.cost_s
    assert result.info["operations"] < effort.additions
