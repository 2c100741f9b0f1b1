"""What is said of a plan's numbers."""

from __future__ import annotations

from typing import Any

import pytest

from autosbp.api import PlanOptions, capture, load_cluster, make_plan
from autosbp.findings import certificate, findings
from service.web.presenters.strategy import optimality


def planned(searcher: str, *, ended: bool = False) -> dict[str, Any]:
    options = PlanOptions(global_batch=64, searcher=searcher)
    plan = make_plan(capture("zoo:mlp-small"), load_cluster("local:2x2"), None, options, lambda *_: not ended)
    return dict(plan.document)


@pytest.mark.parametrize(
    ("searcher", "ended", "why", "advice"),
    [
        ("auto", True, "search ended before all was looked at", "a better plan, and a bound"),
        ("random", False, "searcher random proves none", ""),
    ],
)
def test_why_there_is_no_bound_is_said(searcher: str, ended: bool, why: str, advice: str) -> None:
    document = planned(searcher, ended=ended)
    assert document["gap"] is None and document["lower_bound_s"] is None
    assert why in certificate(document)
    assert optimality(document).value == "no bound" and why in optimality(document).note
    assert ("A longer time limit" in " ".join(findings(document))) == bool(advice)
    assert advice in " ".join(findings(document))


def test_a_gap_is_told_with_its_bound() -> None:
    document = planned("auto")
    assert 0 < document["gap"] < 1
    assert "above the optimum (lower bound" in certificate(document)
    assert any("may close the gap" in sentence for sentence in findings(document))
