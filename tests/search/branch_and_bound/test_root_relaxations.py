"""What search begins with where the largest microbatch that can fit has no optimum that does."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from autosbp.api import PlanOptions, load_cluster, make_plan
from autosbp.plan.plan import BUCKET_BYTES
from autosbp.search.baseline_costs import CostedBaselines
from autosbp.search.branch_and_bound.root_relaxations import OpenNode, RootRelaxations
from tests.search.plans import graph_of

pytestmark = pytest.mark.integration

GOOD, NONE = 140_000_000, 40_000_000
"""Limits with which an optimum of a smaller microbatch fits, and is good, and with which none does."""


@pytest.mark.some(2)
@pytest.mark.parametrize("limit", [GOOD, NONE])
def test_a_microbatch_that_leaves_room_is_where_search_begins(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    begun, drop, found, dropped = RootRelaxations.open_roomily, CostedBaselines.drop, list[float | None](), list[bool]()

    def told(search: RootRelaxations, opened: Sequence[OpenNode]) -> None:
        assert search.incumbent.best is None
        begun(search, opened)
        found.append(None if search.incumbent.best is None else search.incumbent.best.costs.step_time_s)

    def waited(offered: CostedBaselines) -> None:
        dropped.append(offered._task is None or offered._task.in_background)
        drop(offered)

    def planned() -> float:
        asked = {"global_batch": 64, "memory_limit_bytes": limit, "stages": 1, "bucket_bytes": BUCKET_BYTES}
        options = PlanOptions(**asked, baselines=("data_parallel",))
        document = make_plan(graph_of("gpt2-demo"), load_cluster("local:2x2"), None, options).document
        return float(document["step_time_s"])

    monkeypatch.setattr(RootRelaxations, "open_roomily", told)
    monkeypatch.setattr(CostedBaselines, "drop", waited)
    step_s = planned()
    if limit == GOOD:
        assert found == [pytest.approx(step_s, rel=1e-3)] and True not in dropped, "no baseline had to be waited for"
    else:
        assert found == [None] and True in dropped
    monkeypatch.setattr(RootRelaxations, "open_roomily", lambda *_: None)
    assert planned() == pytest.approx(step_s, rel=1e-9), "it hides nothing that is found without it"


def test_multipliers_whose_rough_search_finds_nothing_are_skipped() -> None:
    """Here a rough search finds no assignment of the layouts that pruning leaves."""
    options = PlanOptions(global_batch=16, precision="bf16-mixed", baselines=())
    document = make_plan(graph_of("llama-demo"), load_cluster("dgx-a100-80g:1"), None, options).document
    assert 0 < document["lower_bound_s"] <= document["step_time_s"]
