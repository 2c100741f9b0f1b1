"""Parts of a search that are looked at without what the others find: nothing gets lost, and who looks makes no difference."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest

from autosbp import beside
from autosbp.api import PlanOptions, load_cluster, make_plan
from autosbp.errors import InfeasibleError
from autosbp.plan import Plan
from autosbp.sbp.mesh import Axis, Mesh
from autosbp.search import SearchResult
from autosbp.search.bounds.stage_bound import StageBounds
from autosbp.search.planner import Planner
from autosbp.search.problem.weights import AS_USED
from autosbp.search.space.best import Best
from autosbp.search.space.candidate import Candidate
from autosbp.search.space.recomputing import Estimated, Recomputing, _unlike
from autosbp.search.space.tally import Tally
from autosbp.search.space.timed import OutOfTimeError
from autosbp.search.stages import layouts
from autosbp.search.stages.layouts import Space, Structure
from tests.search.plans import graph_of

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


def _search() -> Best:
    options = PlanOptions(global_batch=16)
    search = Planner(graph_of("gpt2-demo"), load_cluster("local:2x2"), None, options, None).search
    search.begin_even(None)
    return search


@pytest.fixture(params=["two processes", "one"])
def spread(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts, "FEW_OPS", 1)
    if request.param == "one":
        monkeypatch.setattr(beside, "_has_room", lambda: False)
    elif len(os.sched_getaffinity(0)) < 2:
        pytest.skip("a second core is needed")


@pytest.mark.usefixtures("spread")
def test_what_one_finds_is_kept_and_cuts_the_other_no_shorter() -> None:
    search, tally = _search(), Tally()
    quick, slow = _candidates()

    def look(each: Candidate, own: Tally) -> float:
        known = search._cutoff
        search._keep(each)
        search._exceeding.add(("key", each.strategy.micro_batch))
        search.problem = InfeasibleError("memory_limit_bytes", 1, round(1e9 * each.costs.step_time_s))
        own.evaluations += 1
        own.bounds.append(each.costs.step_time_s)
        return known

    looked = list(search._in_rounds([quick, slow], lambda _: True, look, tally))
    assert [known for _, known in looked] == [float("inf")] * 2
    assert search.best == quick
    assert tally.evaluations == 2 and tally.bounds == [quick.costs.step_time_s, slow.costs.step_time_s]
    assert search._exceeding == {("key", each.strategy.micro_batch) for each in (quick, slow)}
    assert search.problem is not None and search.problem.needed == round(1e9 * quick.costs.step_time_s)


@pytest.mark.usefixtures("spread")
def test_the_next_round_knows_what_the_last_one_found() -> None:
    search, tally = _search(), Tally()
    quick, slow = _candidates()
    items = [(0, slow), (1, quick), (2, slow), (3, slow)]

    def look(item: tuple[int, Candidate], _: Tally) -> int:
        search._keep(item[1])
        return item[0]

    looked = list(search._in_rounds(items, lambda item: item[1].costs.step_time_s < search._cutoff, look, tally))
    assert [value for _, value in looked] == [0, 1, None, None]


@pytest.mark.usefixtures("spread")
def test_what_was_found_before_time_was_over_is_kept() -> None:
    search, tally = _search(), Tally()
    quick, slow = _candidates()

    def look(each: Candidate, _: Tally) -> bool:
        search._keep(each)
        if each is quick:
            raise OutOfTimeError
        return True

    with pytest.raises(OutOfTimeError):
        list(search._in_rounds([quick, slow], lambda _: True, look, tally))
    assert search.best == quick


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.some(2)
def test_a_plan_under_a_memory_limit_is_that_of_one_process(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    monkeypatch.setattr(layouts, "FEW_OPS", 1)
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)  # no limit strikes, however slow this machine is
    looked: list[str] = []
    for kind, name in ((Recomputing, "_estimates"), (Best, "_limited_sizes"), (Best, "_pipelined_sizes")):
        _noted(monkeypatch, kind, name, looked)

    def planned() -> Plan:
        options = PlanOptions(global_batch=16, memory_limit_bytes=limit)
        return make_plan(graph_of("gpt2-demo"), load_cluster("local:2x2"), None, options)

    together = planned()
    monkeypatch.setattr(beside, "_has_room", lambda: False)
    looked.clear()
    assert planned().document == together.document
    assert len(set(looked)) > 1


def _noted(monkeypatch: pytest.MonkeyPatch, kind: type, name: str, looked: list[str]) -> None:
    method: Callable[..., object] = getattr(kind, name)

    def noted(self: Best, *arguments: object) -> object:
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
        search.begin()
        one, other = (search._bounds_of(structure, kind) for _ in range(2))
        assert not one.knows(seconds)
        found = one.shut(seconds, lambda: False)
        other = StageBounds(one.problems, structure, one.sizes, one.wanted, {})
        other.learn(one.learnt())
        assert other.knows(seconds)
        assert other.shut(seconds, lambda: pytest.fail("nothing is worked out")) == found
        assert other._rooms == {}
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

    def uneven(_: Best, candidate: Candidate) -> Candidate:
        asked.append(candidate)
        return made

    monkeypatch.setattr(Recomputing, "_uneven", uneven)
    search = _search()
    search._keep(one)
    search.recompute_unevenly(Tally())
    assert search.best is made
    search._keep(two)
    search.recompute_unevenly(Tally())
    search.recompute_unevenly(Tally())
    assert asked == [one, two]


def test_the_same_layouts_on_a_view_that_tells_more_axes_apart_are_costed_once() -> None:
    result = SearchResult((), 1.0, 0, 1.0, 0.0, 0, (), 0.0, "exact")
    coarse, fine = (
        Structure(4, Mesh(tuple(Axis(f"g{at}", size, 0) for at, size in enumerate(shape)), (4,)))
        for shape in ((4,), (2, 2))
    )

    def entry(structure: Structure, seconds: float, size: int = 1) -> tuple[Estimated, Space]:
        return Estimated(seconds, size, AS_USED, result), Space(structure, size, AS_USED, True)

    entries = [entry(coarse, 2.0), entry(fine, 2.0 * (1 + 1e-12)), entry(fine, 2.0, size=2), entry(fine, 1.9)]
    kept = [entries[3], entries[0], entries[2]]
    assert _unlike(entries) == kept
