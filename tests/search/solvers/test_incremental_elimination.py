"""One problem, priced anew again and again: as if each time it were eliminated from the start."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autosbp.search import SearchProblem, cost_of
from autosbp.search.solvers.elimination import minimise, plan_problem
from autosbp.search.solvers.elimination_order import EliminationProgram
from autosbp.search.solvers.incremental_elimination import IncrementalElimination
from autosbp.testing.searcher_conformance import random_problem
from benchmarks.search_blocks import block_problem


def check(problem: SearchProblem, rounds: int = 3, max_entries: int = 1 << 25) -> IncrementalElimination:
    program = plan_problem(problem, max_entries)
    assert isinstance(program, EliminationProgram)
    repriced = IncrementalElimination(problem, program, list(map(id, problem.unary_s)))
    for price in range(rounds):
        priced = {id(one): one + price * np.arange(len(one)) for one in problem.unary_s}
        now = dataclasses.replace(problem, unary_s=tuple(priced[id(one)] for one in problem.unary_s))
        found, truth = repriced.minimise(now.unary_s), minimise(now, program, lambda: None)
        assert found.bound_s == pytest.approx(truth.bound_s, rel=1e-12)
        if program.is_exact and np.isfinite(truth.bound_s):
            assert cost_of(now, found.assignment) == pytest.approx(now.fixed_s + truth.bound_s, rel=1e-12)
    return repriced


@settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(1, 7),
    domain=st.integers(1, 5),
    density=st.sampled_from([0.2, 0.5, 1.0]),
    forbidden=st.sampled_from([0.0, 0.3]),
    max_entries=st.sampled_from([4, 1 << 25]),
)
def test_a_price_gives_what_an_elimination_of_its_own_gives(
    seed: int, count: int, domain: int, density: float, forbidden: float, max_entries: int
) -> None:
    """Of any graph, with variables of one value, and with tables that are split."""
    problem = random_problem(
        np.random.default_rng(seed), num_variables=count, max_domain=domain,
        edge_probability=density, forbidden_probability=forbidden,
    )  # fmt: skip
    check(problem, max_entries=max_entries)


def test_equal_products_are_made_once() -> None:
    """Blocks of the same arrays, too few for a chain's powers."""
    problem = block_problem(2, 6, 5, 0)
    products = check(problem).minimise(problem.unary_s).distinct_products
    assert products < problem.num_variables
    apart = dataclasses.replace(problem, unary_s=tuple(one + 0.0 for one in problem.unary_s))
    assert check(apart).minimise(apart.unary_s).distinct_products == problem.num_variables
