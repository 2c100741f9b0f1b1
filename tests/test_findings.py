"""What is said of a plan's numbers."""

from __future__ import annotations

from typing import Any

import pytest

from autosbp.api import PlanOptions, capture, load_cluster, make_plan
from autosbp.costmodel import timeline_event
from autosbp.findings import PURPOSES, certificate, findings, purposes
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


def split(**parts: Any) -> dict[str, Any]:
    """A document whose step of 10 s has these parts, and else computation."""
    known = {"exposed_comm_s": 0.0, "bubble_s": 0.0, "optimizer_s": 0.0, **parts}
    compute_s = 10.0 - sum(known[name] for name in ("exposed_comm_s", "bubble_s", "optimizer_s"))
    breakdown = {"hidden_comm_s": 0.0, "exposed_comm_by_purpose_s": {}, **known, "compute_s": compute_s}
    return {**planned("random"), "step_time_s": 10.0, "breakdown": breakdown}


@pytest.mark.parametrize(
    ("by_purpose", "said"),
    [
        ({"gradient_sync": 4.0, "tensor_parallel": 2.0}, ", most of it gradient sync"),
        ({"expert_parallel": 2.5, "loss": 1.5, "pipeline": 2.0}, ", the largest part of it expert parallelism"),
        ({"parameter_gather": 6.0, "loss": 0.0}, ", all of it parameter gather"),
        ({}, ""),  # of an earlier release
    ],
)
def test_what_exposed_communication_is_for_is_told(by_purpose: dict[str, float], said: str) -> None:
    binds = findings(split(exposed_comm_s=6.0, exposed_comm_by_purpose_s=by_purpose))
    assert binds[0].startswith(f"Communication binds with 60.0 % of the step{said}: ")
    exposed = {name: seconds / 3 for name, seconds in by_purpose.items()}
    waits = findings(split(exposed_comm_s=2.0, exposed_comm_by_purpose_s=exposed))
    assert waits[0].startswith("Computation binds with 80.0 % of the step: ")
    assert waits[1] == f"Communication is waited for during 20.0 % of the step{said}."


def test_every_purpose_has_words() -> None:
    assert tuple(PURPOSES) == timeline_event.PURPOSES
    assert purposes({"exposed_comm_by_purpose_s": {"loss": 1.0, "pipeline": 2.0, "gradient_sync": 0.0}}) == {
        "messages between stages": 2.0,
        "sum of the loss": 1.0,
    }


def test_how_much_communication_is_hidden_is_told_where_it_is_much() -> None:
    said = "3 s of communication, 75.0 % of all of it, are hidden behind computation."
    assert said in findings(split(exposed_comm_s=1.0, hidden_comm_s=3.0))
    assert not any("hidden" in sentence for sentence in findings(split(exposed_comm_s=1.0, hidden_comm_s=0.01)))


def test_waiting_of_stages_binds_where_it_is_the_largest_of_what_adds_up() -> None:
    sentence = findings(split(bubble_s=6.0, exposed_comm_s=1.0, hidden_comm_s=50.0))[0]
    assert sentence.startswith("Waiting of stages binds with 60.0 % of the step: ")
