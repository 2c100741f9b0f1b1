"""Plans of earlier releases, which searched by a sum in which nothing overlaps."""

from __future__ import annotations

from typing import Any

import pytest

from autosbp.api import PlanOptions, capture, load_cluster, make_plan
from autosbp.errors import InputError
from autosbp.plan.plan import OLDER_OBJECTIVE_WARNING, SCHEMA, Plan, plan_id_of, predicted_step_s, upgrade_document
from autosbp.report.findings import certificate, findings
from autosbp.report.plan_diff import difference
from autosbp.service.web.presenters.strategy import optimality
from autosbp.utils.json_io import canonical
from tests.earlier_plans import OVERLAP, earlier_plan

PARTS = ("compute_s", "exposed_comm_s", "bubble_s", "optimizer_s")


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(capture("zoo:mlp-small"), load_cluster("local:2x2"), None, PlanOptions(global_batch=64))


@pytest.fixture
def earlier(plan: Plan) -> dict[str, Any]:
    return earlier_plan(plan.document)


def with_id(document: dict[str, Any]) -> dict[str, Any]:
    return {**document, "plan_id": plan_id_of(document)}


def test_an_earlier_plan_has_its_simulated_step_no_bound_and_another_id(plan: Plan, earlier: dict[str, Any]) -> None:
    read = Plan.from_dict({**earlier, "search_s": 2.0})
    document = read.document
    assert (document["schema"], document["earlier_plan_id"]) == (SCHEMA, earlier["plan_id"])
    assert read.plan_id == plan_id_of(document) not in (earlier["plan_id"], plan.plan_id)
    assert (plan.stored_id, read.stored_id, read.search_s) == (plan.plan_id, earlier["plan_id"], 2.0)
    assert document["step_time_s"] == plan.document["step_time_s"] == predicted_step_s(earlier)
    assert (document["lower_bound_s"], document["gap"]) == (None, None)
    assert list(document["warnings"]) == [*plan.document["warnings"], OLDER_OBJECTIVE_WARNING]
    assert read.strategy == plan.strategy and read.cluster == plan.cluster
    assert b"simulated" not in canonical(document)


def test_of_an_earlier_plan_and_its_baselines_parts_add_up_to_the_step(plan: Plan, earlier: dict[str, Any]) -> None:
    document = Plan.from_dict(earlier).document
    for found, usual in [(document, plan.document)] + [
        (document["baselines"][name], entry) for name, entry in plan.document["baselines"].items() if entry["feasible"]
    ]:
        parts = found["breakdown"]
        assert sum(parts[name] for name in PARTS) == pytest.approx(found["step_time_s"], rel=1e-12)
        assert parts["hidden_comm_s"] == pytest.approx(OVERLAP * usual["step_time_s"], rel=1e-12)
        assert "exposed_comm_by_purpose_s" not in parts


@pytest.mark.parametrize(
    ("step_s", "parts"),
    [
        (10.0, (4.0, 3.0, 2.0, 1.0, 0.0)),
        (8.0, (4.0, 1.0, 2.0, 1.0, 2.0)),  # communication is hidden
        (6.5, (4.0, 0.0, 1.5, 1.0, 3.0)),  # passes of stages went faster while others waited
        (3.0, (2.0, 0.0, 0.0, 1.0, 3.0)),
        (12.0, (4.0, 5.0, 2.0, 1.0, 0.0)),  # messages slowed each other down
    ],
)
def test_what_the_step_has_less_than_the_sum_is_hidden_first(
    earlier: dict[str, Any], step_s: float, parts: tuple[float, ...]
) -> None:
    sums = dict(zip(PARTS, (4.0, 3.0, 2.0, 1.0), strict=True))
    document = {**earlier, "step_time_s": 10.0, "simulated_step_time_s": step_s, "breakdown": sums}
    found = Plan.from_dict(with_id(document)).document
    assert found["step_time_s"] == step_s
    assert tuple(found["breakdown"][name] for name in (*PARTS, "hidden_comm_s")) == parts


def test_a_plan_of_a_release_without_a_simulated_step_keeps_its_sum(earlier: dict[str, Any]) -> None:
    older = with_id({name: value for name, value in earlier.items() if name != "simulated_step_time_s"})
    found = Plan.from_dict(older).document
    assert found["step_time_s"] == earlier["step_time_s"] == predicted_step_s(older)
    assert found["breakdown"] == earlier["breakdown"] and found["gap"] is None


def test_fewer_devices_of_an_earlier_plan_are_forgotten_as_their_step_is_a_sum(earlier: dict[str, Any]) -> None:
    fewer = {"num_devices": 2, "step_time_s": earlier["step_time_s"]}
    assert "fewer_devices" not in Plan.from_dict(with_id({**earlier, "fewer_devices": fewer})).document


def test_an_earlier_plan_that_was_read_is_read_again(earlier: dict[str, Any]) -> None:
    read = Plan.from_dict(earlier)
    again = Plan.from_dict(read.to_dict())
    assert again.document == read.document and again.plan_id == read.plan_id


def test_a_baseline_of_an_earlier_plan_was_no_plan_of_its_own(earlier: dict[str, Any]) -> None:
    baseline = Plan.from_dict(earlier).with_baseline("data_parallel")
    assert "earlier_plan_id" not in baseline.document and baseline.stored_id == baseline.plan_id


def test_a_stored_document_of_an_earlier_release_keeps_its_id(plan: Plan, earlier: dict[str, Any]) -> None:
    found = upgrade_document(earlier)
    assert (found["plan_id"], found["schema"], found["gap"]) == (earlier["plan_id"], SCHEMA, None)
    assert found["step_time_s"] == plan.document["step_time_s"]
    assert upgrade_document(plan.document) == plan.document == upgrade_document(upgrade_document(plan.document))


def test_why_an_earlier_plan_has_no_bound_is_said(earlier: dict[str, Any]) -> None:
    for told in ({}, {"ended_early": False}):
        document = Plan.from_dict(
            with_id({**{name: value for name, value in earlier.items() if name != "ended_early"}, **told})
        ).document
        assert "an earlier release searched this plan with a cost model without overlap" in certificate(document)
        assert optimality(document).value == "no bound" and "earlier release" in optimality(document).note
        assert not any("longer time limit" in sentence for sentence in findings(document))


def test_earlier_plans_are_compared_with_each_other_and_with_todays(plan: Plan, earlier: dict[str, Any]) -> None:
    step_s = plan.document["step_time_s"]
    for one, two in ((earlier, plan.document), (earlier, earlier), (Plan.from_dict(earlier).document, earlier)):
        found = difference(one, two)
        assert found["costs"]["step_time_s"] == {"a": step_s, "b": step_s}
        assert found["same"] == (two is earlier) and not found["ops"] and not found["parameters"]
    found = difference(earlier, plan.document)
    for name, pair in found["exposed_comm_by_purpose_s"].items():
        assert pair == {"a": None, "b": plan.document["breakdown"]["exposed_comm_by_purpose_s"][name]}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"breakdown": {}}, "breakdown.exposed_comm_s"),
        ({"breakdown": {**dict.fromkeys(PARTS, 1.0), "compute_s": "long"}}, "breakdown.compute_s"),
        ({"breakdown": 3}, "breakdown"),
        ({"simulated_step_time_s": "soon"}, "simulated_step_time_s"),
        ({"step_time_s": -1.0}, "step_time_s"),
        ({"warnings": "none"}, "warnings"),
        ({"baselines": {"megatron": 3}}, "baselines.megatron"),
    ],
)
def test_a_malformed_earlier_plan_is_refused_by_its_field(
    earlier: dict[str, Any], changes: dict[str, Any], field: str
) -> None:
    with pytest.raises(InputError) as refused:
        Plan.from_dict(with_id({**earlier, **changes}))
    assert refused.value.field == field


def test_an_earlier_plan_whose_id_is_not_its_hash_is_refused(earlier: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="the hash of this plan is"):
        Plan.from_dict({**earlier, "simulated_step_time_s": 1e-9})
