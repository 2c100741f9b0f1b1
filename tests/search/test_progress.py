"""Who watches a plan's search is told of strategies that there are, and can end it."""

from __future__ import annotations

from functools import cache
from math import isfinite

import pytest

from autosbp.api import LogicalGraph, Plan, PlanOptions, capture, load_cluster, make_plan, pareto_front
from autosbp.search.branch_and_bound import subproblem_solver
from autosbp.search.progress import BASELINES, FEWER, FRONT, SEARCH, ProgressReporter

pytestmark = pytest.mark.integration

CLUSTER = load_cluster("local:2x2")
TIGHT = PlanOptions(global_batch=64, memory_limit_bytes=2_500_000)
"""What is quickest does not fit."""
FEW = 3
"""Problems that may still be searched once a search was ended."""


@cache
def graph() -> LogicalGraph:
    return capture("zoo:mlp-small")


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A name for each problem that was searched; searchers tell of themselves at once."""
    names: list[str] = []
    monkeypatch.setattr("autosbp.search.solvers.solver_state.PROGRESS_INTERVAL_S", 0.0)
    monkeypatch.setattr("autosbp.utils.parallel._can_fork", lambda: False)
    search = subproblem_solver.SubproblemSolver.search

    def counted(self: object, *arguments: object, **options: object) -> object:
        names.append(type(self).__name__)
        return search(self, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(subproblem_solver.SubproblemSolver, "search", counted)
    return names


@pytest.mark.usefixtures("searched")
def test_reported_progress_decreases_to_the_step_of_the_plan() -> None:
    told: list[tuple[str, float]] = []

    def progress(part: str, best_s: float) -> bool:
        told.append((part, best_s))
        return True

    plan = make_plan(graph(), CLUSTER, None, TIGHT, progress)
    best = [best_s for part, best_s in told if part == SEARCH]
    assert best == sorted(best, reverse=True)
    assert best[-1] == plan.document["step_time_s"]
    assert {part for part, _ in told} <= {BASELINES, SEARCH, FEWER}
    assert BASELINES in {part for part, _ in told}
    assert not any(isfinite(best_s) for part, best_s in told if part != SEARCH)


def test_a_search_that_is_ended_returns_a_plan_and_searches_next_to_nothing_more(searched: list[str]) -> None:
    whole = make_plan(graph(), CLUSTER, None, TIGHT)
    every, told, begun = len(searched), list[float](), 0
    searched.clear()

    def until_there_is_one(_part: str, best_s: float) -> bool:
        nonlocal begun
        told.append(best_s)
        begun = len(searched)
        return not isfinite(best_s)

    found = make_plan(graph(), CLUSTER, None, TIGHT, until_there_is_one)
    assert isfinite(told[-1]) and not any(map(isfinite, told[:-1]))  # and is asked no more
    assert len(searched) <= begun + FEW < every
    document = found.document
    assert whole.document["step_time_s"] <= document["step_time_s"] <= told[-1]
    assert document["memory_bytes_per_device"] <= 2_500_000
    assert document["lower_bound_s"] is None or document["lower_bound_s"] <= whole.document["step_time_s"]
    assert Plan.from_dict(found.to_dict()).plan_id == found.plan_id


def test_a_front_that_is_ended_has_what_was_found(searched: list[str]) -> None:
    parts: list[str] = []
    begun = 0

    def progress(part: str, _best_s: float) -> bool:
        nonlocal begun
        parts.append(part)
        begun = len(searched)
        return part != FRONT

    options = PlanOptions(global_batch=64, baselines=())
    front = pareto_front(graph(), CLUSTER, None, options, 6, progress)
    assert parts[-1] == FRONT and parts.count(FRONT) == 1
    assert len(searched) <= begun + FEW
    of_one_plan = ("fewer_devices", "plan_id")
    whole = make_plan(graph(), CLUSTER, None, options).document
    assert {name: value for name, value in whole.items() if name not in of_one_plan} == {
        name: value for name, value in front[0].document.items() if name not in of_one_plan
    }


def test_the_callback_is_not_called_after_it_stops_the_search() -> None:
    told: list[str] = []

    def progress(part: str, _best_s: float) -> bool:
        told.append(part)
        return False

    watch = ProgressReporter(progress)
    assert [watch.tell(SEARCH, 1.0), watch.tell(FRONT, 1.0), watch.stopped] == [False, False, True]
    assert told == [SEARCH]
    assert ProgressReporter(None).tell(SEARCH, 1.0)
