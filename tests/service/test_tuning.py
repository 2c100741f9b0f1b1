"""/v1/searches with trials: refused requests, a search with real ranks, what it shows, and its page."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from autosbp.api import Plan
from tests.service import documents

pytestmark = pytest.mark.integration

TUNING = {"trials": 8, "steps": 2, "max_s": 0.1}


@pytest.fixture
def asked(shared: TestClient) -> dict[str, Any]:
    """A request to tune a small model on two devices of this machine."""
    return {
        "model_id": shared.post("/v1/models", json={"zoo": "mlp-small"}).json()["id"],
        "cluster_id": shared.post("/v1/clusters", json={"preset": "local:2"}).json()["id"],
        "options": {"global_batch": 8, "time_limit_s": 5.0},
        "mode": "tune",
        "tuning": TUNING,
    }


def test_a_search_by_trials_stores_the_fastest_strategies_and_shows_its_trials(
    shared: TestClient, asked: dict[str, Any]
) -> None:
    job = shared.post("/v1/searches", json=asked).json()
    assert job["kind"] == "tune"
    job = documents.wait(shared, job["id"])
    assert job["state"] == "succeeded", job
    found = shared.get(job["resource"]).json()
    assert found["mode"] == "tune" and found["tuning"]["trials"] == 8
    assert found["strategy_id"] == found["front"][0] and len(set(found["front"])) == len(found["front"]) > 1
    for each in found["front"]:
        assert Plan.from_dict(shared.get(f"/v1/strategies/{each}").json()).plan_id == each
    summary = shared.get(f"{job['resource']}/tuning").json()
    assert summary["num_trials"] == len(summary["trials"]) == 8 and summary["stopped"] == "trials"
    assert summary["num_failed"] == 0, [row["error"] for row in summary["trials"]]
    assert summary["trials"][0]["origin"] == "plan" and summary["speedup"] >= 1
    charts = shared.get(f"{job['resource']}/tuning/charts")
    assert charts.headers["content-type"] == "image/svg+xml" and charts.text.startswith("<svg")
    page = shared.get(f"/searches/{found['id']}").text
    assert "Hit rate" in page and "All trials" in page and "8 trials, 0 failed" in page
    files = shared.get("/v1/artifacts", params={"job_id": job["id"]}).json()["items"]
    assert "trials.jsonl" in {each["name"] for each in files}
    again = shared.post("/v1/searches", json=asked)
    assert (again.status_code, again.json()["id"]) == (200, job["id"])


def test_what_cannot_be_tuned_is_refused_by_name(shared: TestClient, asked: dict[str, Any]) -> None:
    big = shared.post("/v1/clusters", json={"preset": "dgx-a100-80g:32"}).json()["id"]
    for change, field in (
        ({"mode": "plan"}, "tuning"),
        ({"num_points": 3}, "num_points"),
        ({"cluster_id": big}, "cluster_id"),
        ({"tuning": {"proposer": "best"}}, "tuning.proposer"),
        ({"tuning": {"trials": 0}}, "tuning.trials"),
    ):
        answer = shared.post("/v1/searches", json={**asked, **change})
        assert (answer.status_code, answer.json()["field"]) == (422, field), answer.text


def test_a_search_without_trials_has_none_to_show(shared: TestClient, ids: dict[str, Any]) -> None:
    job = documents.wait(shared, shared.post("/v1/searches", json={**ids, "options": documents.OPTIONS}).json()["id"])
    assert shared.get(job["resource"]).json()["mode"] == "plan"
    assert shared.get(f"{job['resource']}/tuning").status_code == 404
