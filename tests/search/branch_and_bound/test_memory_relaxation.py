"""Layouts at a price of memory: the quickest of those with room are found among few, and more memory makes no plan slower."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from autosbp.api import PlanOptions, load_cluster, make_plan
from autosbp.search import SEARCHERS, SearchOptions, SearchProblem, SearchResult
from autosbp.search._base import Edge, cost_of, memory_of
from autosbp.search.branch_and_bound.memory_relaxation import fastest_that_fits, solve_with_multiplier
from tests.search.plans import graph_of
from tests.tiers import form


def random_problem(seed: int) -> SearchProblem:
    """A chain of six variables with three values each, one of which is quick and large."""
    dice = np.random.default_rng(seed)
    count, values = 6, 3
    return SearchProblem(
        tuple(map(str, range(count))),
        tuple(np.sort(dice.random(values)) for _ in range(count)),
        tuple(np.sort(dice.integers(1, 100, values))[::-1].copy() for _ in range(count)),
        tuple(Edge(at, at + 1, 0.1 * dice.random((values, values))) for at in range(count - 1)),
        memory_limit_bytes=1,
        fixed_s=1.0,
        fixed_memory_bytes=7,
    )


def solved(problem: SearchProblem) -> SearchResult:
    return SEARCHERS["exact"](problem, SearchOptions())


def corners(problem: SearchProblem) -> list[tuple[int, float]]:
    """Bytes and seconds of what is the least at some price, by enumeration: the lower convex edge."""
    every = product(*(range(len(costs)) for costs in problem.unary_s))
    points = sorted({(memory_of(problem, each), cost_of(problem, each)) for each in every})
    edge: list[tuple[int, float]] = []
    for point in points:
        if edge and point[1] >= edge[-1][1]:
            continue
        while len(edge) > 1 and _is_above(edge[-2], edge[-1], point):
            edge.pop()
        edge.append(point)
    return edge


def _is_above(left: tuple[int, float], middle: tuple[int, float], right: tuple[int, float]) -> bool:
    slope = (right[1] - left[1]) / (right[0] - left[0])
    return middle[1] >= left[1] + slope * (middle[0] - left[0])


@pytest.mark.parametrize("seed", range(20))
def test_the_last_one_with_room_is_the_quickest_at_any_price_that_has(seed: int) -> None:
    problem = random_problem(seed)
    edge = corners(problem)
    for limit in (edge[0][0] - 1, *(memory for memory, _ in edge), edge[-1][0] + 1):
        asked: list[SearchResult] = []

        def is_too_large(found: SearchResult, asked: list[SearchResult] = asked, limit: int = limit) -> bool:
            asked.append(found)
            return found.memory_bytes > limit

        fastest_that_fits(problem, solved, is_too_large)
        assert all(memory_of(problem, each.assignment) == each.memory_bytes for each in asked)
        assert all(cost_of(problem, each.assignment) == pytest.approx(each.cost_s) for each in asked)
        assert len({each.assignment for each in asked}) == len(asked) <= len(edge)
        found = min((each.cost_s for each in asked if each.memory_bytes <= limit), default=None)
        wanted = min((seconds for memory, seconds in edge if memory <= limit), default=None)
        assert found == (None if wanted is None else pytest.approx(wanted))


def test_without_a_price_it_is_the_quickest_and_at_a_high_one_the_leanest() -> None:
    problem = random_problem(3)
    free = solved(replace(problem, memory_limit_bytes=None))
    assert solve_with_multiplier(problem, 0.0, solved).cost_s == pytest.approx(free.cost_s)
    leanest = sum(int(use.min()) for use in problem.memory_bytes) + problem.fixed_memory_bytes
    assert solve_with_multiplier(problem, 1e9, solved).memory_bytes == leanest


@pytest.mark.long
def test_at_these_limits_more_memory_makes_a_pipeline_no_slower() -> None:
    """The quickest schedule was left where a slower one had room: 10^12 parameters took 15.4 s a step with 86 GB, 16.2 with
    100."""
    graph, cluster = graph_of("gpt-1t"), load_cluster("dgx-a100-80g:2048")
    options = PlanOptions(global_batch=4096, stages=32, micro_batch=64, baselines=())
    steps = [
        make_plan(graph, cluster, None, replace(options, memory_limit_bytes=limit)).document["step_time_s"]
        for limit in form((80 * 10**9, 100 * 10**9), (80 * 10**9, 90 * 10**9, 100 * 10**9, 160 * 10**9))
    ]
    assert steps == sorted(steps, reverse=True)
    assert steps[form(1, 2)] < 15.0
