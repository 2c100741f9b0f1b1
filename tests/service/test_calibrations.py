"""/v1/calibrations"""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from autosbp.cluster.spec import load_cluster
from autosbp.costmodel.calibration import Calibration
from tests.service import documents

pytestmark = pytest.mark.integration


def test_a_document_is_stored_with_its_cluster_and_read_back(client: TestClient) -> None:
    answer = client.post("/v1/calibrations", json=documents.calibration())
    body = answer.json()
    assert answer.status_code == 201
    assert body["id"] == Calibration.from_dict(documents.calibration()).calibration_id
    assert (body["backend"], body["num_collectives"], body["job_id"]) == ("gloo", 15, None)
    assert (body["root_id"], body["newest_id"], body["num_trials"]) == (body["id"], body["id"], 0)
    assert client.get(f"/v1/clusters/{body['cluster_id']}").json()["name"] == "local:2x2"
    detail = client.get(answer.headers["location"]).json()
    assert Calibration.from_dict(detail["document"]) == Calibration.from_dict(documents.calibration())
    assert client.get("/v1/calibrations").json()["items"] == [body]
    assert client.get("/v1/calibrations", params={"cluster_id": "clu-none"}).json()["items"] == []
    assert client.post("/v1/calibrations", json=documents.calibration()).status_code == 200


def fits(**changes: Any) -> dict[str, Any]:
    document = documents.calibration()
    return {**document, "collectives": [{**document["collectives"][0], **changes}]}


@pytest.mark.parametrize(
    "body",
    [
        {**documents.calibration(), "schema": "autosbp.calibration/9"},
        {**documents.calibration(), "cluster": {}},
        {**documents.calibration(), "backend": "mpi"},
        {**documents.calibration(), "ops": {"linear": 3}},
        {**documents.calibration(), "ops": {"linear": [1]}},
        {**documents.calibration(), "ops": {"linear": ["a", "b"]}},
        fits(points=[[1]]),
        fits(points=[3]),
        fits(points=[["a", "b", "c", "d"]]),
        fits(group_shape=[2]),
        fits(kind="barrier"),
        {"cluster_id": "clu-none"},
        {"cluster_id": "clu-none", "surprise": 1},
        {"cluster_id": 3},
        {"cluster_id": "CLUSTER", "point_s": 0},
        {"cluster_id": "CLUSTER", "budget_s": 0},
        {"cluster_id": "CLUSTER", "budget_s": 1801},
        {"model_ids": []},
        {"cluster_id": "CLUSTER", "model_ids": ["mod-none"]},
        {"cluster_id": "CLUSTER", "model_ids": "mod-none"},
        {"cluster_id": "CLUSTER", "options": {"seed": "x"}},
        {"cluster_id": "CLUSTER", "options": {"global_batch": 8}},
        {"cluster_id": "CLUSTER", "op_s": 1.0},
        {"cluster_id": "CLUSTER", "model_ids": ["mod-none"], "options": {"searcher": "random"}},
    ],
)
def test_a_bad_calibration_is_422_and_stores_nothing(shared: TestClient, body: dict[str, Any]) -> None:
    cluster_id = shared.post("/v1/clusters", json={"preset": "local:3"}).json()["id"]
    if body.get("cluster_id") == "CLUSTER":
        body = {**body, "cluster_id": cluster_id}
    paths = "/v1/calibrations", "/v1/clusters", "/v1/jobs"
    before = [shared.get(path).json() for path in paths]
    answer = shared.post("/v1/calibrations" if "schema" in body else "/v1/calibrations:measure", json=body)
    assert answer.status_code == 422, answer.text
    assert {"field", "value", "limit"} <= answer.json().keys()
    assert before == [shared.get(path).json() for path in paths]


def test_a_cluster_is_measured_by_a_job(shared: TestClient) -> None:
    cluster_id = shared.post("/v1/clusters", json={"preset": "local:2"}).json()["id"]
    answer = shared.post(
        "/v1/calibrations:measure", json={"cluster_id": cluster_id, "point_s": 0.01, "variants": False}
    )
    assert (answer.status_code, answer.headers["location"]) == (202, f"/v1/jobs/{answer.json()['id']}")
    job = documents.wait(shared, answer.json()["id"])
    assert job["state"] == "succeeded", job
    found = shared.get(job["resource"]).json()
    assert (found["id"], found["job_id"]) == (job["result"]["calibration_id"], job["id"])
    assert Calibration.from_dict(found["document"]).cluster == load_cluster("local:2")
    assert found["cluster_id"] == cluster_id
