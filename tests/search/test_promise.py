"""An optimum that has room by far cuts others short before it is costed: with the plan that there is otherwise."""

from __future__ import annotations

from typing import Any

import pytest

from autosbp.api import Plan, PlanOptions, load_cluster, make_plan
from autosbp.search.space import costing, opening
from tests.search.plans import graph_of

CASES = {"gpt2": 64, "vgg13": 256}


def planned(name: str, **options: Any) -> Plan:
    given = PlanOptions(global_batch=CASES[name], **{"baselines": (), "time_limit_s": 200.0, **options})
    return make_plan(graph_of(name), load_cluster("dgx-a100-40g:2"), None, given)


@pytest.fixture
def costed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Strategies that this process costs."""
    found: list[Any] = []
    evaluate = costing.evaluate

    def counted(*given: Any) -> Any:
        found.append(given[1])
        return evaluate(*given)

    monkeypatch.setattr(costing, "evaluate", counted)
    return found


@pytest.mark.parametrize("baselines", [(), ("data_parallel", "megatron")])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.some(2)
def test_plans_are_those_without_promises(
    name: str, baselines: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, costed: list[Any]
) -> None:
    trusted = planned(name, baselines=baselines).document
    few = len(costed)
    monkeypatch.setattr(opening, "ROOMY", 0.0)
    assert planned(name, baselines=baselines).document == trusted
    assert few <= len(costed) - few


def test_a_quicker_strategy_is_the_only_one_that_is_costed(costed: list[Any]) -> None:
    plan = planned("gpt2")
    assert costed == [plan.strategy]


def test_what_does_not_fit_after_all_cuts_nothing_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """The strategy that is the best, and that is found first, is said to have no room."""
    options = {"stages": 1, "data_parallel": 16}
    refused = planned("gpt2", **options).strategy
    has_room, keep_promise = costing.Costing.has_room, opening.Opening.keep_promise
    broken: list[int] = []

    def kept(self: opening.Opening) -> None:
        try:
            keep_promise(self)
        except opening.BrokenPromiseError:
            broken.append(1)
            raise

    monkeypatch.setattr(
        costing.Costing, "has_room", lambda self, each: each.strategy != refused and has_room(self, each)
    )
    monkeypatch.setattr(opening.Opening, "keep_promise", kept)
    trusted = planned("gpt2", **options)
    assert broken
    assert trusted.strategy != refused
    broken.clear()
    monkeypatch.setattr(opening, "ROOMY", 0.0)
    assert planned("gpt2", **options).document == trusted.document
    assert not broken


def test_time_that_is_over_leaves_no_promise() -> None:
    """The first strategy is costed, however short the time."""
    for limit_s in (0.01, 0.2):
        plan = planned("gpt2", time_limit_s=limit_s)
        assert plan.document["memory_bytes_per_device"] == sum(plan.document["memory_breakdown"].values()) > 0


@pytest.mark.long
def test_what_takes_smaller_messages_than_was_promised_cuts_nothing_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Problems have the seconds of the largest messages of gradients, and the bytes of the smallest. With a gap that the
    promise is within, and what it takes is not, too."""
    options = {
        "global_batch": 512, "micro_batch": 32, "storage": "as_used", "memory_limit_bytes": 4350 << 20,
        "baselines": (), "time_limit_s": 200.0,
    }  # fmt: skip

    def plan(**more: float) -> Any:
        given = PlanOptions(**options, **more)
        return make_plan(graph_of("gpt2"), load_cluster("dgx-a100-40g:2"), None, given).document

    trusted, near = plan(), plan(gap_tolerance=0.02458)
    monkeypatch.setattr(opening, "ROOMY", 0.0)
    assert plan() == trusted
    assert plan(gap_tolerance=0.02458) == near
    assert near["gap"] <= 0.02458
    assert trusted["strategy"]["bucket_bytes"] < 25 << 20
