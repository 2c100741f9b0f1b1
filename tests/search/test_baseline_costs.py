"""Baselines that another process costs: what search gets of them, and what becomes of that process."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from autosbp.api import PlanOptions, load_cluster
from autosbp.plan.plan import Baseline
from autosbp.search.baseline_costs import Baselines, CostedBaselines
from autosbp.search.planner import Planner
from autosbp.search.progress import ProgressReporter
from autosbp.search.stages import layout_problems
from tests.search.plans import graph_of

two_cores = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs a second core")
NAMES = ("data_parallel", "megatron")


@pytest.fixture(autouse=True)
def shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small models are shared, too."""
    monkeypatch.setattr(layout_problems, "MIN_OPS_TO_SOLVE_IN_PARALLEL", 1)


def planner(told: Callable[[], bool] = lambda: True) -> Planner:
    options = PlanOptions(global_batch=64, baselines=NAMES)
    return Planner(graph_of("mlp-small"), load_cluster("local:2x2"), None, options, ProgressReporter(lambda *_: told()))


def offered(of: Planner, baselines: Baselines | None = None) -> CostedBaselines:
    return CostedBaselines(baselines or of.baselines(), of.started, None, of.search, 0.25)


@cache
def here() -> list[Baseline]:
    with offered(planner()) as found:
        return found.all()


@two_cores
def test_background_and_foreground_baselines_are_equal() -> None:
    of = planner()
    with offered(of) as found:
        found.begin()
        assert found.all() == here()
        assert found.best() == min((found.baselines.start([each]) for each in here()), key=_step_s)
    assert not _children()


def test_without_a_background_process_baselines_are_costed_immediately(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = here()
    monkeypatch.setattr("autosbp.utils.parallel._can_fork", lambda: False)
    with offered(planner()) as found:
        found.begin()
        monkeypatch.setattr(Baselines, "all", lambda *_: pytest.fail("they are known"))
        assert found.all() == expected


@two_cores
def test_stopping_the_search_does_not_wait_for_baselines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Baselines, "all", lambda *_, **__: time.sleep(60))
    of = planner(lambda: False)
    of.search.clock.may_end_empty = True  # as with a strategy
    began = time.monotonic()
    with offered(of) as found:
        found.begin()
        entries = found.all()
        assert found.best() is None
    assert time.monotonic() - began < 10 and not _children()
    assert [(each.name, each.feasible, each.costs) for each in entries] == [(name, None, None) for name in NAMES]
    assert {each.reason for each in entries} == {"the search was stopped before it was found"}


@two_cores
def test_background_work_is_restarted_when_needed_immediately() -> None:
    of = planner()
    with offered(of) as found:
        found.start_in_background()
        assert _children()
        found.drop()
        assert not _children()
        assert found.all() == here()


@two_cores
def test_background_work_is_started_once() -> None:
    of = planner()
    with offered(of) as found:
        found.start_in_background()
        before = _children()
        found.begin()
        assert before and _children() == before
        assert found.all() == here()


@two_cores
def test_unused_background_work_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Baselines, "all", lambda *_, **__: time.sleep(60))
    with offered(planner()) as found:
        found.begin()
        assert _children()
    assert not _children()


def _step_s(candidate: object) -> float:
    return candidate.costs.step_time_s  # type: ignore[attr-defined]


def _children() -> list[str]:
    pid = os.getpid()
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
