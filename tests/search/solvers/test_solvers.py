"""What single searchers promise beyond the contract."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from autosbp.errors import InfeasibleError, InputError
from autosbp.search import SEARCHERS, Edge, SearchOptions, SearchProblem, cost_of, search, validate
from autosbp.search.solvers.random_sampling import batch_costs
from autosbp.testing.searcher_conformance import check_result, random_problem

pytestmark = pytest.mark.integration

HEURISTICS = ("coordinate_descent", "metropolis_hastings", "random")


def chain(length: int, domain: int, seed: int = 0) -> SearchProblem:
    rng = np.random.default_rng(seed)
    return SearchProblem(
        names=tuple(f"v{i}" for i in range(length)),
        unary_s=tuple(rng.random(domain) for _ in range(length)),
        memory_bytes=(np.zeros(domain, dtype=np.int64),) * length,
        edges=tuple(Edge(i, i + 1, rng.random((domain, domain))) for i in range(length - 1)),
    )


def test_unknown_searcher_is_refused_by_name() -> None:
    with pytest.raises(InputError) as caught:
        search(chain(2, 2), "annealing")
    assert caught.value.field == "searcher"


@pytest.mark.parametrize("name", HEURISTICS)
def test_heuristics_find_the_optimum_of_a_small_space(name: str) -> None:
    problem = chain(4, 5)
    assert search(problem, name).cost_s == pytest.approx(search(problem, "exhaustive").cost_s, rel=1e-12)


@pytest.mark.parametrize("name", HEURISTICS)
def test_heuristics_prove_nothing(name: str) -> None:
    result = search(chain(4, 5), name)
    assert result.lower_bound_s == -math.inf
    assert result.gap == math.inf


@pytest.mark.parametrize("name", HEURISTICS)
def test_heuristics_stop_near_max_evaluations(name: str) -> None:
    result = search(chain(30, 20), name, SearchOptions(max_evaluations=2_000))
    assert 1_000 <= result.evaluations <= 2_000 + 30 * 20
    assert result.stopped in ("done", "max_evaluations")


@pytest.mark.parametrize("name", ["coordinate_descent", "metropolis_hastings"])
def test_scaling_all_costs_changes_no_choice(name: str) -> None:
    problem = chain(8, 6)
    scaled = dataclasses.replace(
        problem,
        unary_s=tuple(costs * 2.0**-20 for costs in problem.unary_s),
        edges=tuple(Edge(e.u, e.v, e.table * 2.0**-20) for e in problem.edges),
    )
    assert search(problem, name).cost_s == pytest.approx(search(scaled, name).cost_s * 2.0**20)


def test_coordinate_descent_meets_equality_constraints() -> None:
    """Neighbours must agree (inf off the diagonal): random points break this, grown ones do not."""
    equal = np.where(np.eye(6, dtype=bool), 0.0, math.inf)
    problem = dataclasses.replace(chain(40, 6), edges=tuple(Edge(i, i + 1, equal) for i in range(39)))
    result = search(problem, "coordinate_descent")
    assert len(set(result.assignment)) == 1


def test_exhaustive_refuses_a_space_whose_size_no_float_holds() -> None:
    with pytest.raises(InputError, match=r"about 10\^8.7 assignments; this problem has 10\^400.0"):
        search(chain(400, 10), "exhaustive")


def test_exhaustive_counts_every_assignment_and_breaks_ties_low() -> None:
    flat = chain(9, 4)
    flat = dataclasses.replace(flat, unary_s=(np.ones(4),) * 9, edges=())
    result = search(flat, "exhaustive")
    assert result.evaluations == 4**9
    assert result.assignment == (0,) * 9


def test_exhaustive_refuses_a_large_space() -> None:
    with pytest.raises(InputError, match="assignments"):
        search(chain(10, 10), "exhaustive")


def test_batch_costs_equal_cost_of() -> None:
    problem = random_problem(np.random.default_rng(0), forbidden_probability=0.1)
    rng = np.random.default_rng(1)
    samples = rng.integers(0, [len(costs) for costs in problem.unary_s], size=(50, problem.num_variables))
    expected = [cost_of(problem, tuple(map(int, sample))) for sample in samples]
    assert batch_costs(problem, samples).tolist() == pytest.approx(expected)


def test_auto_runs_what_fits() -> None:
    assert search(chain(3, 3)).searcher == "exhaustive"
    assert search(chain(30, 10)).searcher == "exact"
    rng = np.random.default_rng(0)
    dense = chain(12, 30)
    pairs = [(u, v) for u in range(12) for v in range(u + 1, 12)]
    dense = dataclasses.replace(dense, edges=tuple(Edge(u, v, rng.random((30, 30))) for u, v in pairs))
    assert search(dense, "auto", SearchOptions(time_limit_s=5.0)).searcher == "anytime"


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("unary_s", {"unary_s": ()}),
        ("memory_bytes", {"memory_bytes": ()}),
        ("unary_s[0]", {"unary_s": (np.zeros((2, 2)), np.zeros(2))}),
        ("unary_s[1]", {"unary_s": (np.zeros(2), np.array([0.0, math.nan]))}),
        ("unary_s[1]", {"unary_s": (np.zeros(2), np.array([0, 1]))}),
        ("memory_bytes[0]", {"memory_bytes": (np.zeros(2), np.zeros(2, dtype=np.int64))}),
        ("edges[0]", {"edges": (Edge(0, 2, np.zeros((2, 2))),)}),
        ("edges[0]", {"edges": (Edge(1, 1, np.zeros((2, 2))),)}),
        ("edges[0].table", {"edges": (Edge(0, 1, np.zeros((2, 3))),)}),
        ("edges[0].table", {"edges": (Edge(0, 1, np.full((2, 2), -math.inf)),)}),
        ("memory_limit_bytes", {"memory_limit_bytes": -1}),
        ("fixed_s", {"fixed_s": math.inf}),
    ],
)
def test_a_malformed_problem_is_refused_by_field(field: str, change: dict[str, Any]) -> None:
    with pytest.raises(InputError) as caught:
        validate(dataclasses.replace(chain(2, 2), **change))
    assert caught.value.field == field


def test_a_start_out_of_range_is_refused() -> None:
    with pytest.raises(InputError, match=r"start\[1\]"):
        search(chain(2, 2), "random", SearchOptions(start=(0, 2)))


@pytest.mark.parametrize("name", sorted(SEARCHERS))
def test_a_stop_at_once_still_returns_an_assignment(name: str) -> None:
    problem = chain(6, 4)
    result = search(problem, name, SearchOptions(time_limit_s=1e-9))
    assert result.cost_s == cost_of(problem, result.assignment)


@pytest.mark.parametrize("name", sorted(set(SEARCHERS) - {"exhaustive"}))
def test_a_long_search_stops_at_the_first_request(name: str) -> None:
    rng = np.random.default_rng(5)
    problem = random_problem(rng, num_variables=400, max_domain=30, edge_probability=0.02, memory_share=0.4)
    told: list[tuple[float, float]] = []

    def progress(cost_s: float, bound_s: float) -> bool:
        told.append((cost_s, bound_s))
        return False

    result = search(problem, name, SearchOptions(time_limit_s=300.0, progress=progress))
    assert result.stopped == "cancelled" and len(told) == 1
    check_result(problem, result)


@pytest.mark.parametrize("name", HEURISTICS)
def test_heuristics_say_that_an_empty_result_is_not_a_proof(name: str) -> None:
    edges = tuple(Edge(u, v, np.where(np.eye(2, dtype=bool), math.inf, 0.0)) for u, v in ((0, 1), (1, 2), (0, 2)))
    with pytest.raises(InfeasibleError, match="not a proof"):
        search(dataclasses.replace(chain(3, 2), edges=edges), name, SearchOptions(max_evaluations=100))


def test_importing_the_searchers_loads_neither_torch_nor_cp_sat() -> None:
    code = "import sys, autosbp.search; print([m for m in ('torch', 'ortools', 'pandas') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
