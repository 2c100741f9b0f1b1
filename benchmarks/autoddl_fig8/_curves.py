"""Cost that each searcher reaches over its evaluation budget, across seeds."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autosbp.search import SEARCHERS, SearchOptions, SearchProblem, SearchResult

HEURISTICS = ("coordinate_descent", "metropolis_hastings", "random")
PROVERS = tuple(name for name in SEARCHERS if name not in HEURISTICS)
BAND = (5.0, 50.0, 95.0)
FIRST_BUDGET, BUDGET_STEP = 32, 2


def seeded_options(problem: SearchProblem, seed: int, budget: int | None) -> SearchOptions:
    """Search options with a random start assignment that depends only on the seed, so all searchers share it."""
    rng = np.random.default_rng(seed)
    start = tuple(int(rng.integers(len(costs))) for costs in problem.unary_s)
    return SearchOptions(seed=seed, start=start, max_evaluations=budget)


def points(
    problem: SearchProblem, searcher: str, seeds: Sequence[int], budgets: Sequence[int], until_s: float
) -> list[dict[str, Any]]:
    """One row per evaluation budget: cost percentiles and median seconds over the seeds.

    Stops after the first row whose median run takes at least ``until_s`` seconds.
    """
    rows: list[dict[str, Any]] = []
    for budget in budgets:
        runs = [SEARCHERS[searcher](problem, seeded_options(problem, seed, budget)) for seed in seeds]
        costs = np.percentile([run.cost_s for run in runs], BAND).tolist()
        seconds = statistics.median(run.search_s for run in runs)
        rows.append({"evaluations": budget, "search_s": seconds, "cost_s": costs})
        if seconds >= until_s:
            break
    return rows


def budgets(problem: SearchProblem) -> list[int]:
    """Budgets from a few evaluations up to the number of assignments, doubling."""
    found = [FIRST_BUDGET]
    while found[-1] * BUDGET_STEP <= problem.num_assignments:
        found.append(found[-1] * BUDGET_STEP)
    return found


def timed(call: Callable[[], SearchResult], times: int) -> tuple[SearchResult, float]:
    """Result and median wall time of ``times`` calls."""
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        result = call()
        seconds.append(time.perf_counter() - began)
    return result, statistics.median(seconds)


def one_sweep_s(problem: SearchProblem, times: int) -> float:
    """Seconds that coordinate descent takes to set every variable once."""
    values = sum(len(costs) for costs in problem.unary_s)
    options = seeded_options(problem, 0, values)
    return timed(lambda: SEARCHERS["coordinate_descent"](problem, options), times)[1]
