"""What is said of a plan's numbers."""

from __future__ import annotations

from typing import Any

import pytest

from autosbp.api import PlanOptions, capture, load_cluster, make_plan
from autosbp.costmodel import step_event
from autosbp.report.findings import PURPOSES, certificate, findings, purposes
from autosbp.service.web.presenters.strategy import optimality

pytestmark = pytest.mark.integration


def planned(searcher: str, *, ended: bool = False) -> dict[str, Any]:
    options = PlanOptions(global_batch=64, searcher=searcher)
    plan = make_plan(capture("zoo:mlp-small"), load_cluster("local:2x2"), None, options, lambda *_: not ended)
    return dict(plan.document)


@pytest.mark.parametrize(
    ("searcher", "told", "why", "advised"),
    [
        ("auto", {}, "search was stopped early", True),  # of a release that did not say so
        ("auto", {"ended_early": True}, "search was stopped early", True),
        ("auto", {"ended_early": False}, "the cost model may overestimate strategies", False),
        ("random", {"ended_early": False}, "searcher random proves no bounds", False),
    ],
)
def test_the_reason_for_a_missing_bound_is_given(searcher: str, told: dict[str, bool], why: str, advised: bool) -> None:
    document = {**planned(searcher), "gap": None, "lower_bound_s": None, **told}
    assert why in certificate(document)
    assert optimality(document).value == "no bound" and why in optimality(document).note
    assert ("A longer time limit may give a better plan" in " ".join(findings(document))) == advised


def test_a_search_that_ended_early_reports_its_gap_and_says_so() -> None:
    document = planned("auto", ended=True)
    assert 0 < document["gap"] < 1 and document["ended_early"]
    assert "the optimum (lower bound" in certificate(document) and "search was stopped early" in certificate(document)
    assert "search ended early" in optimality(document).note
    assert any("a better plan and a tighter bound" in sentence for sentence in findings(document))


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
    said = "Search is complete: more time would not reduce the gap to the tolerance of {}."
    for tolerance, text in ((document["gap"] / 2, f"{50 * document['gap']:.1f} %"), (2 * document["gap"], None)):
        asked = {**document, "options": {**document["options"], "gap_tolerance": tolerance}}
        assert (said.format(text) in findings(asked)) == (text is not None)


@pytest.mark.some(2)
@pytest.mark.parametrize(
    ("bound_s", "said"),
    [
        (3.9, "2.56 % above"),
        (2.5, "60 % above"),
        (2.005, "99.5 % above"),
        (1.0, "4 x"),
        (0.0, "an unknown factor above"),
    ],
)
def test_the_gap_is_reported_relative_to_the_optimum(bound_s: float, said: str) -> None:
    document = {**planned("auto"), "step_time_s": 4.0, "lower_bound_s": bound_s, "gap": (4.0 - bound_s) / 4.0}
    assert f"at most {said} the optimum" in certificate(document)
    assert said in optimality(document).value


@pytest.mark.parametrize(("times", "said"), [(1.0, "no faster than"), (1.0029, "0.3 % faster"), (1.5, "1.5 x faster")])
def test_the_speedup_over_the_best_baseline_is_reported(times: float, said: str) -> None:
    document = planned("auto")
    name = next(name for name, each in document["baselines"].items() if each["feasible"])
    baseline = {**document["baselines"][name], "step_time_s": times * document["step_time_s"]}
    assert any(said in sentence for sentence in findings({**document, "baselines": {name: baseline}}))


def split(**parts: Any) -> dict[str, Any]:
    """A document whose step of 10 s has these parts, and else computation."""
    known = {"exposed_comm_s": 0.0, "bubble_s": 0.0, "optimizer_s": 0.0, **parts}
    compute_s = 10.0 - sum(known[name] for name in ("exposed_comm_s", "bubble_s", "optimizer_s"))
    breakdown = {"hidden_comm_s": 0.0, "exposed_comm_by_purpose_s": {}, **known, "compute_s": compute_s}
    known_plan = {name: value for name, value in planned("random").items() if name != "fewer_devices"}
    return {**known_plan, "step_time_s": 10.0, "breakdown": breakdown}


def test_devices_that_are_not_needed_are_told_first() -> None:
    said = findings({**split(), "fewer_devices": {"num_devices": 2, "step_time_s": 9.0}})
    assert said[0] == "2 of 4 devices are sufficient: they take 9 s per step, all 4 10 s."
    assert not any("more devices" in sentence for sentence in said)


def test_tight_memory_says_what_is_kept_from_tensors() -> None:
    document = {
        **split(),
        "memory_bytes_per_device": 95,
        "memory_limit_bytes": 100,
        "memory_breakdown": {"gradients": 95},
    }
    said = findings({**document, "memory_reserve": {"context": 8, "nccl": 2}})
    assert "Memory is tight: 95.0 % of 100 B, beside 10 B for context, nccl; most of it gradients (95 B)." in said


@pytest.mark.some(2)
@pytest.mark.parametrize(
    ("by_purpose", "said"),
    [
        ({"gradient_sync": 4.0, "tensor_parallel": 2.0}, ", most of it gradient sync"),
        ({"expert_parallel": 2.5, "loss": 1.5, "pipeline": 2.0}, ", the largest part of it expert parallelism"),
        ({"parameter_gather": 6.0, "loss": 0.0}, ", all of it parameter gather"),
        ({}, ""),  # of an earlier release
    ],
)
def test_the_purpose_of_exposed_communication_is_reported(by_purpose: dict[str, float], said: str) -> None:
    binds = findings(split(exposed_comm_s=6.0, exposed_comm_by_purpose_s=by_purpose))
    assert binds[0].startswith(f"Communication is the bottleneck with 60.0 % of the step{said}: ")
    exposed = {name: seconds / 3 for name, seconds in by_purpose.items()}
    waits = findings(split(exposed_comm_s=2.0, exposed_comm_by_purpose_s=exposed))
    assert waits[0].startswith("Computation is the bottleneck with 80.0 % of the step: ")
    assert waits[1] == f"Exposed communication takes 20.0 % of the step{said}."


def test_every_purpose_has_words() -> None:
    assert tuple(PURPOSES) == step_event.PURPOSES
    assert purposes({"exposed_comm_by_purpose_s": {"loss": 1.0, "pipeline": 2.0, "gradient_sync": 0.0}}) == {
        "messages between stages": 2.0,
        "loss reduction": 1.0,
    }


def test_hidden_communication_is_reported_if_significant() -> None:
    said = "3 s of communication (75.0 % of the total) is hidden behind computation."
    assert said in findings(split(exposed_comm_s=1.0, hidden_comm_s=3.0))
    assert not any("hidden" in sentence for sentence in findings(split(exposed_comm_s=1.0, hidden_comm_s=0.01)))


def test_the_pipeline_bubble_is_the_bottleneck_if_it_is_the_largest_part() -> None:
    sentence = findings(split(bubble_s=6.0, exposed_comm_s=1.0, hidden_comm_s=50.0))[0]
    assert sentence.startswith("The pipeline bubble is the bottleneck with 60.0 % of the step: ")
