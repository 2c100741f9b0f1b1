"""The claims of AutoDDL's Figure 8, by assignments costed, which are the same on every machine."""

from __future__ import annotations

from time import perf_counter

import pytest

from autosbp.search import SEARCHERS, SearchOptions, SearchResult
from benchmarks.autoddl_fig8._chart import chart
from benchmarks.autoddl_fig8._count_problem import ChainProblem
from benchmarks.autoddl_fig8._curves import HEURISTICS, points, seeded_options
from benchmarks.autoddl_fig8._problem import NODES, fig8_problem, readings

SEEDS = range(10)


@pytest.fixture(scope="module", params=NODES)
def case(request: pytest.FixtureRequest) -> tuple[ChainProblem, SearchResult]:
    chain = fig8_problem(request.param)
    return chain, SEARCHERS["exact"](chain.problem, SearchOptions())


def test_exact_proves_what_exhaustive_search_finds(case: tuple[ChainProblem, SearchResult]) -> None:
    chain, best = case
    whole = SEARCHERS["exhaustive"](chain.problem, SearchOptions())
    assert 0 < whole.evaluations < chain.problem.num_assignments and whole.stopped == "done"
    assert best.gap == whole.gap == 0.0
    assert best.cost_s == pytest.approx(whole.cost_s, rel=1e-12)


def test_coordinate_descent_is_best_then_metropolis_hastings_and_random_search_is_far_off(
    case: tuple[ChainProblem, SearchResult],
) -> None:
    chain, best = case
    budget = 1024
    assert budget < 1e-3 * chain.problem.num_assignments
    median = {
        name: points(chain.problem, name, SEEDS, [budget], 1.0)[0]["cost_s"][1] / best.cost_s for name in HEURISTICS
    }
    assert median["coordinate_descent"] <= median["metropolis_hastings"] < median["random"]
    assert median["coordinate_descent"] == pytest.approx(1.0, rel=1e-9)
    assert median["metropolis_hastings"] < 1.02
    assert median["random"] > 1.05


def test_exact_takes_less_time_than_one_sweep_of_coordinate_descent(
    case: tuple[ChainProblem, SearchResult],
) -> None:
    """The shortest of many runs each: what else runs on the machine only adds."""
    problem = case[0].problem
    sweep = seeded_options(problem, 0, sum(map(len, problem.unary_s)))
    options = {"exact": SearchOptions(), "coordinate_descent": sweep}
    shortest = {
        name: min(_wall_s(name, case[0], each) for _ in range(200)) for name, each in options.items()
    }  # fmt: skip
    assert shortest["exact"] < shortest["coordinate_descent"]


def _wall_s(name: str, chain: ChainProblem, options: SearchOptions) -> float:
    began = perf_counter()
    SEARCHERS[name](chain.problem, options)
    return perf_counter() - began


def test_longer_paths_and_a_paid_entry_only_add_to_the_optimum() -> None:
    found = readings(128)
    for boxing in ("cheapest", "section_4.3"):
        assert found[f"{boxing}/none"] <= found[f"{boxing}/forward"] <= found[f"{boxing}/both"]
    for entry in ("forward", "both", "none"):
        assert found[f"cheapest/{entry}"] <= found[f"section_4.3/{entry}"]


def test_the_chart_holds_a_panel_per_number_of_nodes_and_axis() -> None:
    row = {"evaluations": 32, "search_s": 1e-3, "cost_s": [1.0, 1.5, 2.0]}
    proved = {"evaluations": 1000, "search_s": 1.0}
    result = {"optimum_s": 1.0, "searchers": {"random": {"points": [row]}, "exact": proved, "exhaustive": proved}}
    drawn = chart({"128": result, "4096": result})
    assert drawn.count("relative to") == 4 and drawn.startswith("<svg")
