"""/v1/trials"""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.service import documents

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def plan(shared: TestClient) -> dict[str, Any]:
    """A strategy of the perceptron on two ranks of this machine, searched with a calibration."""
    calibration = shared.post("/v1/calibrations", json=documents.calibration("local:2")).json()
    asked = {
        "model_id": shared.post("/v1/models", json=documents.graph()).json()["id"],
        "cluster_id": calibration["cluster_id"],
        "calibration_id": calibration["id"],
        "options": documents.OPTIONS,
    }
    job = documents.wait(shared, shared.post("/v1/searches", json=asked).json()["id"])
    assert job["state"] == "succeeded", job
    document: dict[str, Any] = shared.get(f"/v1/strategies/{job['result']['strategy_id']}").json()
    return document


def run(client: TestClient, body: dict[str, Any]) -> dict[str, Any]:
    """Run a trial to its end; the trial."""
    answer = client.post("/v1/trials", json={**body, "steps": 3, "warmup": 1})
    assert (answer.status_code, answer.headers["location"]) == (202, f"/v1/jobs/{answer.json()['id']}")
    resource = answer.json()["resource"]
    before = client.get(resource).json()
    assert (before["measured_step_time_s"], before["result"]) == (None, None)
    job = documents.wait(client, answer.json()["id"])
    assert job["state"] == "succeeded", (job, client.get(f"{resource}/logs").text)
    trial: dict[str, Any] = client.get(resource).json()
    assert trial["id"] == job["result"]["trial_id"]
    return trial


def test_a_trial_sets_what_was_measured_beside_what_was_predicted(shared: TestClient, plan: dict[str, Any]) -> None:
    trial = run(shared, {"strategy_id": plan["plan_id"]})
    assert trial["predicted"]["step_time_s"] == plan["step_time_s"]
    measured_s = trial["result"]["step_time_s"]["median"]
    assert trial["measured_step_time_s"] == measured_s > 0
    assert trial["relative_error"] == pytest.approx((measured_s - plan["step_time_s"]) / measured_s)
    assert trial["result"]["losses"]
    assert trial["result"]["experience"]["measured_s"] == measured_s
    assert [each["num_trials"] for each in shared.get("/v1/calibrations").json()["items"]] == [1, 0]
    log = shared.get(f"/v1/trials/{trial['id']}/logs")
    assert (log.status_code, log.headers["content-type"]) == (200, "text/plain; charset=utf-8")
    assert log.text.strip()
    kept = {each["name"]: each for each in shared.get(f"/v1/artifacts?job_id={trial['job']['id']}").json()["items"]}
    assert kept.keys() == {"ranks.log", "result.json"}
    assert shared.get(f"/v1/artifacts/{kept['ranks.log']['id']}/content").text == log.text
    page = shared.get(f"/trials/{trial['id']}", headers={"accept": "text/html"}).text
    assert all(f'href="/files/{each["id"]}"' in page for each in kept.values())
    listed = shared.get("/v1/trials", params={"strategy_id": plan["plan_id"]}).json()["items"]
    assert listed[-1] == {key: value for key, value in trial.items() if key not in ("result", "gates")}
    assert shared.get("/v1/trials", params={"strategy_id": "plan-none"}).json()["items"] == []


def test_a_baseline_of_a_strategy_is_tried_with_its_own_prediction(shared: TestClient, plan: dict[str, Any]) -> None:
    name = sorted(plan["baseline_strategies"])[0]
    trial = run(shared, {"strategy_id": plan["plan_id"], "baseline": name})
    assert trial["baseline"] == name
    assert trial["predicted"]["step_time_s"] == plan["baselines"][name]["step_time_s"]


def test_a_trial_is_judged_once_and_listed_by_its_label_and_outcome(shared: TestClient, plan: dict[str, Any]) -> None:
    trial = run(shared, {"strategy_id": plan["plan_id"], "label": "main"})
    assert (trial["label"], trial["passed"], trial["gates"]) == ("main", None, None)
    path = f"/v1/trials/{trial['id']}"
    version = shared.get(path).headers["etag"]
    claimed = {"gates": [{"name": "max_step_time_s", "limit": 1, "value": 0.5, "passed": True, "sentence": "so I say"}]}
    for bad in (claimed, {"passed": True}, {"max_step_time_s": -1}, {"max_regression": "5%"}, {"baseline_label": ""}):
        assert shared.post(f"{path}:judge", json=bad).status_code == 422, bad
    assert shared.get(path).json() == trial
    limits = {"max_step_time_s": 1e-9, "max_regression": 0.05, "baseline_label": "main"}
    judged = shared.post(f"{path}:judge", json=limits, headers={"if-match": version})
    gates = {gate["name"]: gate for gate in judged.json()["gates"]}
    assert (judged.status_code, judged.json()["passed"]) == (200, False)
    assert {name: gate["passed"] for name, gate in gates.items()} == {
        "collectives_match": True,
        "max_step_time_s": False,
        "max_loss_difference": True,
        "max_regression": True,
    }
    assert gates["max_step_time_s"]["value"] == trial["measured_step_time_s"], "whatever the caller says"
    assert (
        gates["max_regression"]["value"] is None
        and "no earlier trial labelled main" in gates["max_regression"]["sentence"]
    )
    assert judged.headers["etag"] == shared.get(path).headers["etag"] != version
    assert shared.post(f"{path}:judge", json=limits).json() == judged.json(), "the same again changes nothing"
    page = shared.get(f"/trials/{trial['id']}", headers={"accept": "text/html"}).text
    assert "failed: step time" in page and ">main<" in page
    better = shared.post(f"{path}:judge", json={"max_step_time_s": 1e9})
    assert (better.status_code, shared.get(path).json()["passed"]) == (409, False)
    stale = shared.post(f"{path}:judge", json=limits, headers={"if-match": version})
    assert stale.status_code == 412
    asked = {"label=main": 1, "label=main&passed=false": 1, "passed=true": 0, "label=other": 0}
    assert {query: len(shared.get(f"/v1/trials?{query}").json()["items"]) for query in asked} == asked
    assert shared.post("/v1/trials/tri-none:judge", json={}).status_code == 404


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"strategy_id": "plan-none"}, "strategy_id"),
        ({"strategy_id": None}, "strategy_id"),
        ({"baseline": "nonsense"}, "baseline"),
        ({"baseline": "No Name"}, "baseline"),
        ({"steps": 0}, "steps"),
        ({"steps": "3"}, "steps"),
        ({"warmup": -1}, "warmup"),
        ({"seed": 2**31}, "seed"),
        ({"label": ""}, "label"),
        ({"label": "a\nb"}, "label"),
        ({"label": "b" * 201}, "label"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_a_bad_trial_is_422_and_stores_nothing(
    shared: TestClient, plan: dict[str, Any], changes: dict[str, Any], field: str
) -> None:
    before = shared.get("/v1/trials").json(), shared.get("/v1/jobs").json()
    answer = shared.post("/v1/trials", json={"strategy_id": plan["plan_id"], **changes})
    assert (answer.status_code, answer.json()["field"]) == (422, field)
    assert before == (shared.get("/v1/trials").json(), shared.get("/v1/jobs").json())


def test_a_trial_of_a_schedule_that_nothing_runs_is_422(shared: TestClient) -> None:
    asked = {
        "model_id": shared.post("/v1/models", json=documents.graph()).json()["id"],
        "cluster_id": shared.post("/v1/clusters", json={"preset": "local:2"}).json()["id"],
        "options": {**documents.OPTIONS, "stages": 2, "micro_batch": 2, "schedules": ["message_driven"]},
    }
    job = documents.wait(shared, shared.post("/v1/searches", json=asked).json()["id"])
    assert job["state"] == "succeeded", job
    answer = shared.post("/v1/trials", json={"strategy_id": job["result"]["strategy_id"]})
    assert answer.status_code == 422
    assert "no runtime supports the schedule message_driven" in answer.json()["detail"]


def test_the_log_of_a_trial_that_has_not_begun_is_empty(shared: TestClient, plan: dict[str, Any]) -> None:
    job = shared.post("/v1/trials", json={"strategy_id": plan["plan_id"]}).json()
    assert shared.get(f"{job['resource']}/logs").status_code == 200
    shared.post(f"/v1/jobs/{job['id']}:cancel")
    assert documents.wait(shared, job["id"])["state"] == "cancelled"
    assert shared.get(job["resource"]).json()["result"] is None
    refused = shared.post(f"{job['resource']}:judge", json={})
    assert refused.status_code == 409 and "is cancelled" in refused.json()["detail"]
