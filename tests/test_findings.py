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
    ("searcher", "told", "why", "advised"),
    [
        ("auto", {}, "search ended before all was looked at", True),  # of a release that did not say so
        ("auto", {"ended_early": True}, "search ended before all was looked at", True),
        ("auto", {"ended_early": False}, "what is charged of a strategy may be more than it takes", False),
        ("random", {"ended_early": False}, "searcher random proves none", False),
    ],
)
def test_why_there_is_no_bound_is_said(searcher: str, told: dict[str, bool], why: str, advised: bool) -> None:
    document = {**planned(searcher), "gap": None, "lower_bound_s": None, **told}
    assert why in certificate(document)
    assert optimality(document).value == "no bound" and why in optimality(document).note
    assert ("A longer time limit may give a better plan" in " ".join(findings(document))) == advised


def test_of_a_search_that_ended_early_the_gap_is_told_and_that_there_is_more() -> None:
    document = planned("auto", ended=True)
    assert 0 < document["gap"] < 1 and document["ended_early"]
    assert "the optimum (lower bound" in certificate(document) and "search ended before" in certificate(document)
    assert "search ended early" in optimality(document).note
    assert any("a better plan, and a better bound" in sentence for sentence in findings(document))


def test_no_longer_time_limit_is_advised_to_a_searcher_that_proves_nothing() -> None:
    document = planned("random")
    assert 0 <= document["gap"] < 1
    assert not any("longer time limit" in sentence for sentence in findings(document))


def test_a_gap_is_told_with_its_bound() -> None:
    document = planned("auto")
    assert 0 < document["gap"] < 1
    assert "above the optimum (lower bound" in certificate(document)
    # Search looked at all: with more time it would do the same.
    assert not any("longer time limit" in sentence for sentence in findings(document))
    said = "All was looked at: more time would not prove the {} that the gap may have."
    for tolerance, text in ((document["gap"] / 2, f"{50 * document['gap']:.1f} %"), (2 * document["gap"], None)):
        asked = {**document, "options": {**document["options"], "gap_tolerance": tolerance}}
        assert (said.format(text) in findings(asked)) == (text is not None)


@pytest.mark.parametrize(
    ("bound_s", "said"),
    [(3.9, "2.56 % above"), (2.5, "60 % above"), (2.005, "99.5 % above"), (1.0, "4 x"), (0.0, "any number of times")],
)
def test_a_gap_is_told_relative_to_the_optimum(bound_s: float, said: str) -> None:
    document = {**planned("auto"), "step_time_s": 4.0, "lower_bound_s": bound_s, "gap": (4.0 - bound_s) / 4.0}
    assert f"at most {said} the optimum" in certificate(document)
    assert said in optimality(document).value


@pytest.mark.parametrize(("times", "said"), [(1.0, "no faster than"), (1.0029, "0.3 % faster"), (1.5, "1.5 x faster")])
def test_how_much_faster_than_the_best_baseline_is_told(times: float, said: str) -> None:
    document = planned("auto")
    name = next(name for name, each in document["baselines"].items() if each["feasible"])
    baseline = {**document["baselines"][name], "step_time_s": times * document["step_time_s"]}
    assert any(said in sentence for sentence in findings({**document, "baselines": {name: baseline}}))
