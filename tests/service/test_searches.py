"""/v1/searches and the strategies that they find."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from autosbp.api import load_graph, predict_costs, what_if, why
from autosbp.costmodel.calibration import Calibration
from autosbp.export import export_plan
from autosbp.plan.plan import Plan
from autosbp.report.analysis_json import what_if_document, why_document
from tests.service import documents

pytestmark = pytest.mark.integration


def search(client: TestClient, ids: dict[str, Any], **options: Any) -> dict[str, Any]:
    """Run a search to its end; the job."""
    answer = client.post("/v1/searches", json={**ids, "options": {**documents.OPTIONS, **options}})
    assert answer.status_code in (200, 202), answer.text
    return documents.wait(client, answer.json()["id"])


def test_a_search_is_answered_by_a_strategy_with_provenance_and_baselines(
    shared: TestClient, ids: dict[str, Any]
) -> None:
    answer = shared.post("/v1/searches", json={**ids, "options": documents.OPTIONS})
    assert (answer.status_code, answer.headers["location"]) == (202, f"/v1/jobs/{answer.json()['id']}")
    asked = shared.get(answer.json()["resource"]).json()
    assert {key: asked[key] for key in ids} == ids
    assert asked["options"]["global_batch"] == 8

    job = documents.wait(shared, answer.json()["id"])
    assert job["state"] == "succeeded", job
    found = shared.get(job["resource"]).json()
    assert found["strategy_id"] == job["result"]["strategy_id"]
    assert found["job"]["state"] == "succeeded"

    plan = shared.get(f"/v1/strategies/{found['strategy_id']}").json()
    assert Plan.from_dict(plan).plan_id == found["strategy_id"]
    assert plan["provenance"] and plan["baselines"]
    assert plan["step_time_s"] <= min(entry["step_time_s"] for entry in plan["baselines"].values() if entry["feasible"])


def test_a_strategy_has_its_id_as_etag_and_is_not_sent_twice(shared: TestClient, ids: dict[str, Any]) -> None:
    path = f"/v1/strategies/{search(shared, ids)['result']['strategy_id']}"
    answer = shared.get(path)
    assert answer.headers["etag"] == f'"{answer.json()["plan_id"]}"'
    again = shared.get(path, headers={"if-none-match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert shared.get(path, headers={"if-none-match": '"other"'}).status_code == 200


def test_an_equal_search_is_answered_from_the_store_unless_a_fresh_one_is_asked_for(
    shared: TestClient, ids: dict[str, Any]
) -> None:
    first = search(shared, ids)
    body = {**ids, "options": documents.OPTIONS}
    again = shared.post("/v1/searches", json=body)
    assert (again.status_code, again.json()) == (200, first)
    other = shared.post("/v1/searches", json={**body, "options": {**documents.OPTIONS, "seed": 1}})
    fresh = shared.post("/v1/searches", json=body, headers={"cache-control": "no-cache"})
    joined = shared.post("/v1/searches", json={**body, "options": {**documents.OPTIONS, "seed": 1}})
    assert [other.status_code, fresh.status_code] == [202, 202]
    assert joined.json()["id"] == other.json()["id"]
    done = documents.wait(shared, fresh.json()["id"])
    assert done["resource"] != first["resource"]
    assert done["result"]["strategy_id"] == first["result"]["strategy_id"]
    assert 'autosbp_answers_reused_total{why="equal-search"}' in shared.get("/metrics").text


def test_a_front_is_searched_and_its_strategies_are_compared_and_exported(
    shared: TestClient, ids: dict[str, Any]
) -> None:
    answer = shared.post("/v1/searches", json={**ids, "options": documents.OPTIONS, "num_points": 3})
    job = documents.wait(shared, answer.json()["id"])
    found = shared.get(job["resource"]).json()
    front = [shared.get(f"/v1/strategies/{each}").json() for each in found["front"]]
    assert len(front) >= 2 and found["strategy_id"] == front[0]["plan_id"]
    times = [plan["step_time_s"] for plan in front]
    memory = [plan["memory_bytes_per_device"] for plan in front]
    assert times == sorted(times) and memory == sorted(memory, reverse=True)

    ends = front[0]["plan_id"], front[-1]["plan_id"]
    compared = shared.get(f"/v1/strategies/{ends[0]}/diff/{ends[1]}").json()
    assert (compared["a"], compared["b"], compared["same"]) == (*ends, False)
    assert compared["costs"]["memory_bytes_per_device"] == {"a": memory[0], "b": memory[-1]}
    assert shared.get(f"/v1/strategies/{ends[0]}/diff/plan-none").status_code == 404

    for target in ("dtensor", "perfetto"):
        export = shared.get(f"/v1/strategies/{ends[0]}/exports/{target}").json()
        plan = Plan.from_dict(front[0])
        graph = load_graph(documents.graph())
        assert export["files"] == export_plan(target, plan, graph, Calibration.from_dict(documents.calibration()))
    refused = shared.get(f"/v1/strategies/{ends[0]}/exports/fortran")
    assert (refused.status_code, refused.json()["field"]) == (422, "target")


@pytest.mark.parametrize("more", [{}, {"num_points": 2}])
def test_a_search_begins_with_a_stored_strategy_which_is_costed_anew(
    shared: TestClient, ids: dict[str, Any], more: dict[str, int]
) -> None:
    """It is of another batch. The answer is kept apart from that of the same search without a start."""
    start_id = search(shared, ids)["result"]["strategy_id"]
    without = {**ids, "options": {**documents.OPTIONS, "global_batch": 16}, **more}
    job = shared.post("/v1/searches", json={**without, "start_id": start_id})
    assert job.status_code == 202, job.text
    done = documents.wait(shared, job.json()["id"])
    found = shared.get(done["resource"]).json()
    assert found["start_id"] == start_id
    plan = Plan.from_dict(shared.get(f"/v1/strategies/{found['strategy_id']}").json())
    assert plan.strategy.global_batch == 16 and plan.plan_id != start_id and not plan.document["warnings"]
    costs = predict_costs(
        load_graph(documents.graph()), plan.strategy, plan.cluster, Calibration.from_dict(documents.calibration())
    )
    assert costs.step_time_s == plan.document["step_time_s"]

    again = shared.post("/v1/searches", json={**without, "start_id": start_id})
    assert (again.status_code, again.json()["id"]) == (200, job.json()["id"])
    cold = shared.post("/v1/searches", json=without)
    assert (cold.status_code, cold.json()["id"] == job.json()["id"]) == (202, False)
    cold_id = documents.wait(shared, cold.json()["id"])["result"]["strategy_id"]
    assert shared.get(f"/v1/strategies/{cold_id}").json()["step_time_s"] == pytest.approx(costs.step_time_s, rel=1e-9)


def test_a_start_of_another_cluster_is_left_aside_and_the_answer_says_so(
    shared: TestClient, ids: dict[str, Any]
) -> None:
    start_id = search(shared, ids)["result"]["strategy_id"]
    other = shared.post("/v1/clusters", json={"preset": "local:3x2"}).json()["id"]
    asked = {**ids, "cluster_id": other, "calibration_id": None, "start_id": start_id, "options": documents.OPTIONS}
    job = documents.wait(shared, shared.post("/v1/searches", json=asked).json()["id"])
    plan = shared.get(f"/v1/strategies/{job['result']['strategy_id']}").json()
    assert [each for each in plan["warnings"] if each.startswith("The warm start was not used: its 1 stages of 2 x 2")]


def test_why_not_and_what_if_are_answered_as_the_command_line_answers_them(
    shared: TestClient, ids: dict[str, Any]
) -> None:
    strategy = search(shared, ids)["result"]["strategy_id"]
    plan = Plan.from_dict(shared.get(f"/v1/strategies/{strategy}").json())
    graph, costs = load_graph(documents.graph()), Calibration.from_dict(documents.calibration())
    op = next(iter(plan.strategy.signatures))
    step_s = predict_costs(graph, plan.strategy, plan.cluster, costs).step_time_s
    asked = {
        "why": ({"op": op, "most": 3}, why_document(plan, why(graph, plan, op, costs, most=3), step_s)),
        "what-if": (
            {"factor": 4.0},
            what_if_document(plan, what_if(graph, plan, costs, factor=4.0), step_s, calibrated=True),
        ),
    }
    for kind, (question, wanted) in asked.items():
        answer = shared.post(f"/v1/strategies/{strategy}/{kind}", json=question)
        assert answer.status_code == 202, answer.text
        job = documents.wait(shared, answer.json()["id"])
        analysis = shared.get(job["resource"]).json()
        assert (analysis["id"], analysis["kind"]) == (job["result"]["analysis_id"], kind)
        assert analysis["result"] == wanted
        again = shared.post(f"/v1/strategies/{strategy}/{kind}", json=question)
        assert (again.status_code, again.json()["id"]) == (200, job["id"])
        listed = shared.get("/v1/analyses", params={"strategy_id": strategy, "kind": kind}).json()["items"]
        assert [each["id"] for each in listed] == [analysis["id"]]
    unknown = shared.post(f"/v1/strategies/{strategy}/why", json={"op": "no_such_op"})
    assert documents.wait(shared, unknown.json()["id"])["problem"]["status"] == 422
    assert shared.post("/v1/strategies/plan-none/why", json={"op": op}).status_code == 404


def test_strategies_and_searches_are_listed_by_model_and_cluster(shared: TestClient, ids: dict[str, Any]) -> None:
    found = search(shared, ids)["result"]
    for kind, key in (("strategies", "strategy_id"), ("searches", "search_id")):
        for query in ({}, {"model_id": ids["model_id"]}, {"cluster_id": ids["cluster_id"]}):
            items = shared.get(f"/v1/{kind}", params=query).json()["items"]
            assert found[key] in [item["id"] for item in items]
        for query in ({"model_id": "mod-none"}, {"cluster_id": "clu-none"}):
            assert shared.get(f"/v1/{kind}", params=query).json()["items"] == []
    item = shared.get("/v1/strategies", params={"limit": 1}).json()["items"][0]
    assert "plan" not in item and item["step_time_s"] > 0


def test_what_cannot_fit_in_any_layout_is_refused_and_nothing_is_stored(
    shared: TestClient, ids: dict[str, Any]
) -> None:
    before = [shared.get(f"/v1/{kind}").json()["items"] for kind in ("searches", "jobs")]
    answer = shared.post("/v1/searches", json={**ids, "options": {**documents.OPTIONS, "memory_limit_bytes": 1}})
    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")
    problem = answer.json()
    assert (problem["constraint"], problem["limit"]) == ("memory_limit_bytes", 1)
    assert problem["needed"] > 1
    assert [shared.get(f"/v1/{kind}").json()["items"] for kind in ("searches", "jobs")] == before


def test_a_search_that_no_strategy_meets_fails_with_the_constraint(shared: TestClient, ids: dict[str, Any]) -> None:
    refused = shared.post("/v1/searches", json={**ids, "options": {**documents.OPTIONS, "memory_limit_bytes": 1}})
    limit = int(refused.json()["needed"])  # the parameters fit, their activations do not
    job = search(shared, ids, memory_limit_bytes=limit)
    assert job["state"] == "failed"
    assert job["problem"]["type"] == "urn:autosbp:problem:infeasible"
    assert job["problem"]["constraint"]
    assert job["problem"]["limit"] == limit
    assert shared.get(job["resource"]).json()["strategy_id"] is None


def test_pinned_layouts_are_kept_and_pins_that_exclude_each_other_are_named(
    shared: TestClient, ids: dict[str, Any]
) -> None:
    graph = shared.get(f"/v1/models/{ids['model_id']}/graph").json()
    linear = next(node for node in graph["nodes"] if node["op"] == "aten.linear.default")
    weight = linear["args"][1]["ref"]
    job = search(shared, ids, pins={weight: "S0 -> B"}, data_parallel=4)
    assert job["state"] == "succeeded", job
    plan = shared.get(f"/v1/strategies/{job['result']['strategy_id']}").json()
    assert set(plan["strategy"]["parameters"][weight].split(",")) == {"S0"}
    assert plan["options"]["pins"] == {weight: "S0 -> B"}
    problem = search(shared, ids, pins={weight: "S0", linear["name"]: "S0"})["problem"]
    assert (problem["type"], problem["status"]) == ("urn:autosbp:problem:infeasible", 422)
    assert set(problem["conflict"]) == {f"pins.{weight}=S0", f"pins.{linear['name']}=S0"}


def test_a_search_of_no_time_is_infeasible(shared: TestClient, ids: dict[str, Any]) -> None:
    answer = shared.post("/v1/searches", json={**ids, "options": {"time_limit_s": 0.0}})
    assert (answer.status_code, answer.json()["constraint"]) == (422, "time_limit_s")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"model_id": "mod-none"}, "model_id"),
        ({"cluster_id": "clu-none"}, "cluster_id"),
        ({"calibration_id": "cal-none"}, "calibration_id"),
        ({"start_id": "plan-none"}, "start_id"),
        ({"start_id": 3}, "start_id"),
        ({"start_id": "plan-none", "options": {"data_parallel": 2}}, "options.data_parallel"),
        ({"model_id": 3}, "model_id"),
        ({"model_id": "no id"}, "model_id"),
        ({"surprise": 3}, "surprise"),
        ({"options": {"global_batch": 0}}, None),
        ({"options": {"global_batch": True}}, None),
        ({"options": {"searcher": "psychic"}}, None),
        ({"options": {"surprise": 1}}, None),
        ({"options": {"baselines": ["zero4"]}}, "options.baselines"),
        ({"options": {"pins": {"layers.0.weight": 0}}}, "options.pins.layers.0.weight"),
        ({"options": {"pins": ["layers.0.weight"]}}, "options.pins"),
        ({"options": {"data_parallel": 0}}, "options.data_parallel"),
        ({"options": {"stage_of": {"linear_0": -1}}}, "options.stage_of.linear_0"),
        ({"options": {"stage_of": {"linear_0": "1"}}}, "options.stage_of.linear_0"),
        ({"options": {"tensor_parallel": "2"}}, "options.tensor_parallel"),
        ({"options": {"pins": {"a": "x" * 1000}}}, "options.pins.a"),
        ({"options": {"seed": "x"}}, None),
        ({"options": {"stages": 1, "schedules": ["message_driven"]}}, "options.schedules"),
        ({"options": {"pins": {"linear_1": "S0"}, "schedules": ["gpipe"]}}, "options.schedules"),
        ({"options": {"pins": {"linear_1": "S0"}, "storage": "use"}}, "options.storage"),
        ({"options": {"searcher": "random", "gap_tolerance": 0.1}}, "options.gap_tolerance"),
        ({"options": {"memory_limit_bytes": -1}}, None),
        ({"options": {"time_limit_s": 1e9}}, "options.time_limit_s"),
        ({"options": []}, "options"),
    ],
)
def test_a_bad_search_is_422_and_stores_nothing(
    shared: TestClient, ids: dict[str, Any], changes: dict[str, Any], field: str | None
) -> None:
    before = shared.get("/v1/searches").json(), shared.get("/v1/jobs").json()
    answer = shared.post("/v1/searches", json={**ids, **changes})
    assert answer.status_code == 422, answer.text
    problem = answer.json()
    assert {"field", "value", "limit"} <= problem.keys()
    if field is not None:
        assert problem["field"] == field
    assert before == (shared.get("/v1/searches").json(), shared.get("/v1/jobs").json())


def test_a_calibration_of_another_cluster_is_refused(shared: TestClient, ids: dict[str, Any]) -> None:
    other = shared.post("/v1/clusters", json={"preset": "local:2"}).json()["id"]
    answer = shared.post("/v1/searches", json={**ids, "cluster_id": other})
    assert (answer.status_code, answer.json()["field"]) == (422, "calibration_id")


def test_a_search_has_the_precision_that_suits_the_devices_or_the_one_asked_for(
    shared: TestClient, ids: dict[str, Any]
) -> None:
    usual, mixed, captured = (
        shared.get(f"/v1/strategies/{search(shared, ids, **more)['result']['strategy_id']}").json()
        for more in ({}, {"precision": "bf16-mixed"}, {"precision": None})
    )
    assert (usual["precision"], mixed["precision"], "precision" in captured) == ("fp32", "bf16-mixed", False)
    assert usual["provenance"]["graph_hash"] == mixed["provenance"]["graph_hash"]
    page = shared.get(f"/strategies/{mixed['plan_id']}/timeline")
    assert page.status_code == 200, page.text
    explained = shared.post(f"/v1/strategies/{mixed['plan_id']}/why", json={"op": "linear_0", "most": 2})
    assert documents.wait(shared, explained.json()["id"])["state"] == "succeeded"
    refused = shared.post("/v1/searches", json={**ids, "options": {**documents.OPTIONS, "precision": "fp8"}})
    assert refused.status_code == 422 and refused.json()["field"] == "options.precision"
    lacking = shared.post("/v1/searches", json={**ids, "options": {**documents.OPTIONS, "precision": "fp8-mixed"}})
    assert lacking.status_code == 422 and lacking.json()["field"] == "options.precision"
    assert "peak_flops.float8" in lacking.text
