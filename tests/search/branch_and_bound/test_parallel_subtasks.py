"""Parts of a search that are looked at without what the others find: nothing gets lost, and who looks makes no difference."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest

from autosbp.api import PlanOptions, load_cluster, make_plan
from autosbp.errors import InfeasibleError
from autosbp.plan.plan import Plan
from autosbp.sbp.mesh import Axis, Mesh
from autosbp.search import SearchResult
from autosbp.search.bounds.stage_bound import StageBounds
from autosbp.search.branch_and_bound.best_first import BestFirstSearch
from autosbp.search.branch_and_bound.candidate import Candidate
from autosbp.search.branch_and_bound.checkpointing_search import CheckpointingSearch, StepEstimate, _without_duplicates
from autosbp.search.branch_and_bound.clock import OutOfTimeError
from autosbp.search.branch_and_bound.microbatch_sweep import MicrobatchSweep
from autosbp.search.branch_and_bound.search_stats import SearchStats
from autosbp.search.planner import Planner
from autosbp.search.problem.cost_weights import UNSHARDED
from autosbp.search.stages import layout_problems
from autosbp.search.stages.layout_problems import PipelineStructure, SubproblemKey
from autosbp.utils import parallel
from tests.search.plans import graph_of

pytestmark = pytest.mark.integration

LIMITS = (60_000_000, 40_000_000)


@cache
def _candidates() -> tuple[Candidate, Candidate]:
    """One that is quick, and one that is slow."""
    found = []
    for limit in (None, LIMITS[0]):
        options = PlanOptions(global_batch=16, stages=2, memory_limit_bytes=limit, baselines=())
        planner = Planner(graph_of("gpt2-demo"), load_cluster("local:2x2"), None, options, None)
        found.append(planner.found()[1])
    quick, slow = sorted(found, key=lambda each: each.costs.step_time_s)
    assert quick.costs.step_time_s < slow.costs.step_time_s
    return quick, slow


def _search() -> BestFirstSearch:
    options = PlanOptions(global_batch=16)
    return Planner(graph_of("gpt2-demo"), load_cluster("local:2x2"), None, options, None).search


@pytest.fixture(params=["two processes", "one"])
def spread(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout_problems, "MIN_OPS_TO_SOLVE_IN_PARALLEL", 1)
    if request.param == "one":
        monkeypatch.setattr(parallel, "_can_fork", lambda: False)
    elif len(os.sched_getaffinity(0)) < 2:
        pytest.skip("a second core is needed")


@pytest.mark.usefixtures("spread")
def test_subtasks_keep_their_results_and_share_no_cutoffs() -> None:
    search = _search()
    quick, slow = _candidates()

    def look(each: Candidate) -> float:
        known = search.incumbent.cutoff_s
        search.context.keep(each)
        search.context.findings.over_limit.add(("key", each.strategy.micro_batch))
        search.context.stats.failure = InfeasibleError("memory_limit_bytes", 1, round(1e9 * each.costs.step_time_s))
        search.context.stats.evaluations += 1
        search.context.stats.bounds.append(each.costs.step_time_s)
        return known

    looked = list(search.processes.in_rounds([quick, slow], lambda _: True, look))
    assert [known for _, known in looked] == [float("inf")] * 2
    assert search.incumbent.best == quick
    tally = search.context.stats
    assert tally.evaluations == 2 and tally.bounds == [quick.costs.step_time_s, slow.costs.step_time_s]
    assert search.context.findings.over_limit == {("key", each.strategy.micro_batch) for each in (quick, slow)}
    assert tally.failure is not None and tally.failure.needed == round(1e9 * quick.costs.step_time_s)


@pytest.mark.usefixtures("spread")
def test_rounds_share_the_incumbent() -> None:
    search = _search()
    quick, slow = _candidates()
    items = [(0, slow), (1, quick), (2, slow), (3, slow)]

    def look(item: tuple[int, Candidate]) -> int:
        search.context.keep(item[1])
        return item[0]

    def is_open(item: tuple[int, Candidate]) -> bool:
        return item[1].costs.step_time_s < search.incumbent.cutoff_s

    looked = list(search.processes.in_rounds(items, is_open, look))
    assert [value for _, value in looked] == [0, 1, None, None]


@pytest.mark.usefixtures("spread")
def test_results_before_the_time_limit_are_kept() -> None:
    search = _search()
    quick, slow = _candidates()

    def look(each: Candidate) -> bool:
        search.context.keep(each)
        if each is quick:
            raise OutOfTimeError
        return True

    with pytest.raises(OutOfTimeError):
        list(search.processes.in_rounds([quick, slow], lambda _: True, look))
    assert search.incumbent.best == quick


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.some(2)
def test_a_plan_under_a_memory_limit_is_that_of_one_process(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    monkeypatch.setattr(layout_problems, "MIN_OPS_TO_SOLVE_IN_PARALLEL", 1)
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)  # no limit strikes, however slow this machine is
    looked: list[str] = []
    for kind, name in (
        (CheckpointingSearch, "_estimates"),
        (BestFirstSearch, "_limited_sizes"),
        (MicrobatchSweep, "pipelined_sizes"),
    ):
        _noted(monkeypatch, kind, name, looked)

    def planned() -> Plan:
        options = PlanOptions(global_batch=16, memory_limit_bytes=limit)
        return make_plan(graph_of("gpt2-demo"), load_cluster("local:2x2"), None, options)

    together = planned()
    monkeypatch.setattr(parallel, "_can_fork", lambda: False)
    looked.clear()
    assert planned().document == together.document
    assert len(set(looked)) > 1


def _noted(monkeypatch: pytest.MonkeyPatch, kind: type, name: str, looked: list[str]) -> None:
    method: Callable[..., object] = getattr(kind, name)

    def noted(self: object, *arguments: object) -> object:
        looked.append(name)
        return method(self, *arguments)

    monkeypatch.setattr(kind, name, noted)


@pytest.mark.long
def test_bounds_that_were_learnt_say_the_same() -> None:
    options = PlanOptions(global_batch=16, memory_limit_bytes=LIMITS[0])
    planner = Planner(graph_of("gpt2-demo"), load_cluster("local:2x2"), None, options, None)
    best, kind, search = planner.found()[1], planner.kind(), planner.search
    seconds = 0.98 * best.costs.step_time_s
    says = 0
    for structure in planner.structures():
        search.context.begin(kind, SearchStats(), None)
        one, other = (search.pruning._stage_bounds(structure) for _ in range(2))
        assert not one.is_decided(seconds)
        found = one.infeasible_sizes(seconds, lambda: False)
        other = StageBounds(one.problems, structure, one.sizes, one.strategies, {})
        other.learn(one.export_limits())
        assert other.is_decided(seconds)
        assert other.infeasible_sizes(seconds, lambda: pytest.fail("nothing is worked out")) == found
        assert other._capacities == {}
        says += any(found)
        for at, is_shut in enumerate(found):
            least = other.least(at, seconds)
            assert least == seconds if is_shut else least == pytest.approx(one.least(at, seconds), rel=1e-3)
    assert says


def test_what_is_made_uneven_hides_no_strategy_that_may_be_better_once_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    quick, slow = _candidates()
    assert slow.strategy.pipeline is not None
    recomputing = replace(slow.strategy, recompute=(("a",),))
    one, two = (
        Candidate(replace(recomputing, bucket_bytes=size), replace(slow.costs, step_time_s=seconds))
        for size, seconds in ((1, 1.05), (2, 1.04))
    )
    made = Candidate(replace(recomputing, bucket_bytes=3), replace(quick.costs, step_time_s=1.0))
    asked = []

    def uneven(_: CheckpointingSearch, candidate: Candidate) -> Candidate:
        asked.append(candidate)
        return made

    monkeypatch.setattr(CheckpointingSearch, "_uneven", uneven)
    search = _search()
    search.context.keep(one)
    search.checkpointing.apply_uneven_checkpointing()
    assert search.incumbent.best is made
    search.context.keep(two)
    search.checkpointing.apply_uneven_checkpointing()
    search.checkpointing.apply_uneven_checkpointing()
    assert asked == [one, two]


def test_the_same_layouts_on_a_view_that_tells_more_axes_apart_are_costed_once() -> None:
    result = SearchResult((), 1.0, 0, 1.0, 0.0, 0, (), 0.0, "exact")
    coarse, fine = (
        PipelineStructure(4, Mesh(tuple(Axis(f"g{at}", size, 0) for at, size in enumerate(shape)), (4,)))
        for shape in ((4,), (2, 2))
    )

    def entry(structure: PipelineStructure, seconds: float, size: int = 1) -> tuple[StepEstimate, SubproblemKey]:
        return StepEstimate(seconds, size, UNSHARDED, result), SubproblemKey(structure, size, UNSHARDED, True)

    entries = [entry(coarse, 2.0), entry(fine, 2.0 * (1 + 1e-12)), entry(fine, 2.0, size=2), entry(fine, 1.9)]
    kept = [entries[3], entries[0], entries[2]]
    assert _without_duplicates(entries) == kept
