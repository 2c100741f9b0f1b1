"""A plan ends soon after its time limit, with the best so far, and says what there was no time for."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import pytest

from autosbp.api import LogicalGraph, Plan, PlanOptions, capture, load_cluster, make_plan
from autosbp.errors import InfeasibleError
from autosbp.plan.plan import Baseline
from autosbp.report.findings import findings
from autosbp.search import SearchProblem, planner
from autosbp.search.baseline_costs import Baselines
from autosbp.search.bounds.work_bound import work_bound_s
from autosbp.search.branch_and_bound import clock
from autosbp.search.branch_and_bound.bucket_sizes import BUCKET_SIZES
from autosbp.search.branch_and_bound.candidate import Candidate
from autosbp.search.branch_and_bound.clock import Clock, OutOfTimeError
from autosbp.search.branch_and_bound.context import SearchContext
from autosbp.search.branch_and_bound.incumbent import Incumbent
from autosbp.search.branch_and_bound.microbatch_sweep import MicrobatchSweep
from autosbp.search.branch_and_bound.strategy_coster import StrategyCoster
from autosbp.search.branch_and_bound.subproblem_solver import SubproblemSolver
from autosbp.search.planner import Planner

pytestmark = pytest.mark.integration

CLUSTER = load_cluster("local:2x2")
OPTIONS = PlanOptions(global_batch=64, time_limit_s=100.0, baselines=("data_parallel", "zero3", "megatron"))


@cache
def graph() -> LogicalGraph:
    return capture("zoo:mlp-small")


class Work:
    """What is solved and costed, one name after another, and the problems that are solved. From the time ``late_at`` things
    were on, the limit is over."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, late_at: int) -> None:
        self.done: list[str] = []
        self.problems: list[SearchProblem] = []
        self.late_at = late_at
        began = time.monotonic()
        times = SimpleNamespace(monotonic=lambda: began + 1e6 * (len(self.done) >= self.late_at))
        for module in (clock, planner):
            monkeypatch.setattr(module, "time", times)
        monkeypatch.setattr("autosbp.utils.parallel._can_fork", lambda: False)
        for kind, name in ((SubproblemSolver, "search"), (StrategyCoster, "costs")):
            self._count(monkeypatch, kind, name)

    def _count(self, monkeypatch: pytest.MonkeyPatch, kind: type, name: str) -> None:
        method = getattr(kind, name)

        def counted(solver: object, *arguments: Any, **options: object) -> object:
            found = method(solver, *arguments, **options)
            self.problems += arguments[:1] if name == "search" else ()
            self.done.append(name)
            return found

        monkeypatch.setattr(kind, name, counted)


@pytest.fixture
def unhurried() -> tuple[Work, Plan]:
    """A plan that the limit does not end."""
    with pytest.MonkeyPatch.context() as patch:
        work = Work(patch, 10**9)
        return work, make_plan(graph(), CLUSTER, None, OPTIONS)


@pytest.mark.parametrize("late_at", [1, 3, 5, 8, 12, 20])
def test_nothing_but_sizes_of_messages_is_tried_once_time_is_over_and_there_is_a_strategy(
    unhurried: tuple[Work, Plan], monkeypatch: pytest.MonkeyPatch, late_at: int
) -> None:
    whole, best = unhurried
    work = Work(monkeypatch, late_at)
    plan = make_plan(graph(), CLUSTER, None, OPTIONS)
    first = work.done.index("costs") + 1
    assert len(whole.done) > 20
    behind = work.done[max(first, late_at) + 1 :]
    assert set(behind) <= {"costs"} and len(behind) < len(BUCKET_SIZES)
    document = plan.document
    assert document["step_time_s"] >= best.document["step_time_s"]
    assert document["ended_early"] and 0 < document["lower_bound_s"] <= best.document["step_time_s"]
    assert "fewer_devices" not in document
    assert Plan.from_dict(plan.to_dict()).plan_id == plan.plan_id


def test_baselines_not_reached_in_time_are_not_called_infeasible(monkeypatch: pytest.MonkeyPatch) -> None:
    work, costed = Work(monkeypatch, 10**9), Baselines._baseline

    def first(baselines: Baselines, name: str) -> Baseline:
        found = costed(baselines, name)
        work.late_at = len(work.done)
        return found

    monkeypatch.setattr(Baselines, "_baseline", first)
    document = make_plan(graph(), CLUSTER, None, OPTIONS).document
    first, *others = document["baselines"].values()
    assert first["feasible"] is True and first["step_time_s"] >= document["step_time_s"]
    for entry in others:
        assert entry["feasible"] is None and entry["step_time_s"] is None
        assert entry["reason"] == "the time limit of 100 s was reached before it was found"
    assert list(document["baseline_strategies"]) == ["data_parallel"]
    said = "\n".join(findings(document))
    assert "megatron is unknown: the time limit of 100 s was reached before it was found." in said
    assert "megatron does not run" not in said


def test_a_baseline_that_was_cut_short_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = make_plan(graph(), CLUSTER, None, replace(OPTIONS, baselines=("megatron",))).document
    work = Work(monkeypatch, 10**9)
    keep = SearchContext.keep

    def kept(context: SearchContext, candidate: Candidate | None) -> None:
        keep(context, candidate)
        if context.clock.may_end_empty:  # of a baseline: search has a strategy
            work.late_at = len(work.done)

    monkeypatch.setattr(SearchContext, "keep", kept)
    entry = make_plan(graph(), CLUSTER, None, replace(OPTIONS, baselines=("megatron",))).document["baselines"][
        "megatron"
    ]
    assert entry["feasible"] and entry["step_time_s"] >= whole["baselines"]["megatron"]["step_time_s"]
    assert entry["reason"] == "the time limit of 100 s was reached before all of its grids were searched"
    assert whole["baselines"]["megatron"]["reason"] == ""


def test_unreached_time_limits_do_not_change_the_plan(unhurried: tuple[Work, Plan]) -> None:
    _, plan = unhurried
    other = make_plan(graph(), CLUSTER, None, replace(OPTIONS, time_limit_s=5000.0)).document
    of_limit = ("options", "plan_id")
    assert {k: v for k, v in plan.document.items() if k not in of_limit} == {
        k: v for k, v in other.items() if k not in of_limit
    }


def test_a_search_ends_between_its_deadline_and_twice_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    at = SimpleNamespace(now=100.0)
    monkeypatch.setattr(clock, "time", SimpleNamespace(monotonic=lambda: at.now))
    search = Clock(10.0, 110.0, Incumbent())
    for at.now, end in ((101.0, 112.5), (109.0, 114.0), (119.0, 120.0), (140.0, 120.0)):
        search.set_deadline(110.0)
        assert search.end == 112.5
        search.extend(0.25, 100.0)
        assert search.end == end
    search.require_time()  # there is nothing to end with
    search.may_end_empty = True
    with pytest.raises(OutOfTimeError):
        search.require_time()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs a second core")
def test_the_other_process_ends_with_a_search_that_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    told = time.monotonic()
    search, here = Planner(graph(), CLUSTER, None, OPTIONS, None).search, os.getpid()
    search.clock.may_end_empty = True
    search.clock.report = lambda _best: time.monotonic() < told + 0.5
    monkeypatch.setattr("autosbp.search.stages.layout_problems.MIN_OPS_TO_SOLVE_IN_PARALLEL", 1)

    def task(_at: int) -> int:
        time.sleep(0.2 if os.getpid() == here else 60.0)
        return 0

    with pytest.raises(OutOfTimeError):
        search.processes.spread([partial(task, at) for at in range(3)])
    assert time.monotonic() < told + 10.0
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


@pytest.mark.long
def test_what_was_proved_of_every_structure_by_then_is_the_bound_of_a_plan_that_is_cut_short() -> None:
    model, cluster = capture("zoo:gpt2"), load_cluster("dgx-a100-40g:1")
    options = PlanOptions(global_batch=64, time_limit_s=100.0, baselines=(), memory_limit_bytes=3 * 2**30)

    def planned(late_at: int) -> tuple[int, dict[str, Any]]:
        with pytest.MonkeyPatch.context() as patch:
            work = Work(patch, late_at)
            plan = make_plan(model, cluster, None, options)
            return max(at for at, name in enumerate(work.done) if name == "search"), dict(plan.document)

    last, whole = planned(10**9)  # what follows are sizes of messages
    least_s = work_bound_s(lambda size: model.bind(batch=size), [64], 64, cluster, None)
    assert "ended_early" not in whole
    early, later, late = (planned(round(share * last))[1] for share in (0.2, 0.7, 0.9))
    assert early["ended_early"] and later["ended_early"] and late["ended_early"]
    assert early["lower_bound_s"] == least_s
    for each in (later, late):
        assert 1.01 * least_s < each["lower_bound_s"] <= whole["step_time_s"]


@pytest.mark.parametrize("searcher", ["auto", "exact"])
@pytest.mark.parametrize("limit_s", [1e-3, 1e-2])
def test_however_short_the_limit_there_is_a_plan_where_one_fits(limit_s: float, searcher: str) -> None:
    """With nothing to end with, search goes on to the first strategy."""
    options = replace(OPTIONS, time_limit_s=limit_s, searcher=searcher)
    document = make_plan(capture("zoo:gpt2-demo"), CLUSTER, None, options).document
    assert document["ended_early"] and document["step_time_s"] > 0


def test_without_a_strategy_stages_are_looked_into_before_anything_that_takes_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where nothing fits without stages, and time is over behind the first searches: each structure is solved once, at some
    multipliers, and none under the memory limit."""
    work = Work(monkeypatch, 3)
    model, cluster = capture("zoo:gpt2-1.5b"), load_cluster("dgx-a100-40g:2")
    options = PlanOptions(global_batch=64, memory_limit_bytes=6 << 30, time_limit_s=100.0, baselines=())
    plan = make_plan(model, cluster, None, options)
    assert plan.document["ended_early"]
    assert plan.strategy.num_stages > 1 and not plan.strategy.recompute
    assert not any(problem.memory_limit_bytes for problem in work.problems)
    whole = max(problem.num_variables for problem in work.problems)
    solved = [problem for problem in work.problems if problem.num_variables == whole]
    assert len(solved) <= len(Planner(model, cluster, None, options, None).structures())


def test_stage_search_stops_when_the_caller_stops_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing was found, and nothing fits."""
    monkeypatch.setattr("autosbp.utils.parallel._can_fork", lambda: False)
    begun: list[int] = []
    pipelined = MicrobatchSweep._pipelined
    monkeypatch.setattr(MicrobatchSweep, "_pipelined", lambda self, *given: begun.append(1) or pipelined(self, *given))
    options = PlanOptions(global_batch=64, memory_limit_bytes=250 << 20, recompute=0, baselines=(), time_limit_s=100.0)
    with pytest.raises(InfeasibleError):
        cluster = load_cluster("dgx-a100-40g:2")
        make_plan(capture("zoo:gpt2"), cluster, None, options, progress=lambda *_: False)
    assert not begun
