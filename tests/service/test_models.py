"""/v1/models"""

from __future__ import annotations

from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from starlette.testclient import TestClient

from benchmarks.fuzz._corpus import onnx_models
from tests.service import documents, onnx_files

pytestmark = pytest.mark.integration


def test_a_graph_is_stored_under_its_hash_and_read_back(client: TestClient) -> None:
    answer = client.post("/v1/models", json=documents.graph())
    body = answer.json()
    assert answer.status_code == 201
    assert (body["name"], body["source"]) == ("mlp", "graph")
    assert body["id"].startswith(f"mod-{body['graph_hash']}") and len(body["id"]) == len("mod-") + 32
    assert body["summary"]["num_parameters"] == 16 * 32 + 32 + 32 * 16 + 16
    assert client.get(answer.headers["location"]).json() == body
    assert client.get(f"{answer.headers['location']}/graph").json()["name"] == "mlp"
    assert client.post("/v1/models", json=client.get(f"/v1/models/{body['id']}/graph").json()).status_code == 200


def test_the_same_graph_again_is_200_with_the_same_id(client: TestClient) -> None:
    first = client.post("/v1/models", json=documents.graph())
    again = client.post("/v1/models", json=documents.graph())
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json()
    assert len(client.get("/v1/models").json()["items"]) == 1


def test_a_graph_with_an_infinite_constant_is_stored_and_read_back(client: TestClient) -> None:
    graph = documents.graph()
    shift = {"name": "shift", "op": "aten.clamp.default", "args": [graph["loss"], {"float": "-Infinity"}],
             "outputs": [{"shape": [], "dtype": "float32"}]}  # fmt: skip
    body = {**graph, "nodes": [*graph["nodes"], shift], "loss": {"ref": "shift"}}
    answer = client.post("/v1/models", json=body)
    assert answer.status_code == 201
    assert client.get(f"{answer.headers['location']}/graph").json()["nodes"][-1]["args"][1] == {"float": "-Infinity"}


def test_equal_posts_at_once_make_one_model(client: TestClient) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: client.post("/v1/models", json=documents.graph()), range(16)))
    assert sorted(answer.status_code for answer in answers) == [200] * 15 + [201]
    assert len(client.get("/v1/models").json()["items"]) == 1


@pytest.mark.parametrize(
    "body",
    [
        {**documents.graph(), "schema": "autosbp.graph/9"},
        {**documents.graph(), "surprise": 1},
        {**documents.graph(), "nodes": []},
        {**documents.graph(), "nodes": 7},
        {**documents.graph(), "loss": {"ref": "nothing"}},
        {**documents.graph(), "nodes": [{**documents.graph()["nodes"][0], "args": [{"a": [[]]}]}]},
        {**documents.graph(), "parameters": [{"name": "w"}]},
        {"zoo": "../secrets"},
        {"zoo": "no-such-model"},
        {"zoo": 7},
        {"zoo": "gpt2", "seq_len": 9},
        {"hf_config": "gpt2"},
        {"hf_config": {"model_type": "gpt2"}, "seq_len": 0},
        {"hf_config": {"model_type": "gpt2"}, "seq_len": 1.5},
        {"hf_config": {"model_type": "gpt2"}, "auto_map": {}},
    ],
)
def test_a_bad_model_is_422_and_stores_nothing(shared: TestClient, body: dict[str, Any]) -> None:
    before = shared.get("/v1/models").json(), shared.get("/v1/jobs").json()
    answer = shared.post("/v1/models", json=body)
    assert answer.status_code == 422, answer.text
    assert {"field", "value", "limit"} <= answer.json().keys()
    assert before == (shared.get("/v1/models").json(), shared.get("/v1/jobs").json())


def test_a_model_of_the_zoo_is_stored_at_once(shared: TestClient) -> None:
    answer = shared.post("/v1/models", json={"zoo": documents.ZOO})
    assert (answer.status_code, answer.json()["source"]) == (201, f"zoo:{documents.ZOO}")
    assert shared.post("/v1/models", json={"zoo": documents.ZOO}).status_code == 200


def test_a_hugging_face_configuration_is_captured_by_a_job(shared: TestClient) -> None:
    wrong = shared.post("/v1/models:capture", json={"hf_config": {"model_type": "abacus"}})
    config = {"model_type": "gpt2", "n_layer": 1, "n_embd": 32, "n_head": 2, "vocab_size": 64, "n_positions": 32}
    answer = shared.post("/v1/models:capture", json={"hf_config": config, "seq_len": 16})
    assert (answer.status_code, answer.headers["location"]) == (202, f"/v1/jobs/{answer.json()['id']}")
    job = documents.wait(shared, answer.json()["id"])
    assert job["state"] == "succeeded", job
    assert shared.get(job["resource"]).json()["source"] == "hf_config"
    failed = documents.wait(shared, wrong.json()["id"])
    assert (failed["state"], failed["problem"]["field"]) == ("failed", "config.model_type")


def test_a_model_is_deleted_unless_a_search_refers_to_it(shared: TestClient, ids: dict[str, Any]) -> None:
    lonely = shared.post("/v1/models", json={**documents.graph(), "name": "lonely"}).json()["id"]
    assert shared.delete(f"/v1/models/{lonely}").status_code == 204
    assert shared.get(f"/v1/models/{lonely}").status_code == 404
    search = {"model_id": ids["model_id"], "cluster_id": ids["cluster_id"], "options": documents.OPTIONS}
    assert shared.post("/v1/searches", json=search).status_code == 202
    answer = shared.delete(f"/v1/models/{ids['model_id']}")
    assert answer.status_code == 409
    assert answer.json()["type"] == "urn:autosbp:problem:conflict"
    assert shared.get(f"/v1/models/{ids['model_id']}").status_code == 200


def test_a_model_is_kept_while_a_calibration_is_to_measure_its_ops(shared: TestClient) -> None:
    model = shared.post("/v1/models", json={**documents.graph(), "name": "measured"}).json()["id"]
    cluster = shared.post("/v1/clusters", json={"preset": "local:2"}).json()["id"]
    job = shared.post("/v1/calibrations:measure", json={"cluster_id": cluster, "model_ids": [model]}).json()
    answer = shared.delete(f"/v1/models/{model}")
    assert (answer.status_code, job["id"] in answer.json()["detail"]) == (409, True)
    shared.post(f"/v1/jobs/{job['id']}:cancel")
    assert documents.wait(shared, job["id"])["state"] == "cancelled"
    assert shared.delete(f"/v1/models/{model}").status_code == 204


def test_an_onnx_file_is_captured_by_a_job_and_its_weights_are_not_stored(shared: TestClient) -> None:
    content = b64encode(onnx_models()[0]).decode()
    answer = shared.post("/v1/models:capture", json={"onnx": content, "name": "perceptron"})
    assert answer.status_code == 202, answer.text
    job = documents.wait(shared, answer.json()["id"])
    assert job["state"] == "succeeded", job
    model = shared.get(job["resource"]).json()
    assert (model["source"], model["name"], model["summary"]["num_parameters"]) == ("onnx", "perceptron", 15)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"onnx": "?"}, "onnx"),
        ({"onnx": "aGVsbG8="}, "model.file"),
        ({"onnx": b64encode(onnx_models()[1]).decode()}, "model.graph.node[1].op_type"),
        ({"onnx": "aGVsbG8=", "name": "../x"}, "name"),
        ({"onnx": "aGVsbG8=", "zoo": "mlp"}, "zoo"),
        ({"onnx": b64encode(onnx_files.external()).decode()}, "model.graph.initializer"),
    ],
)
def test_a_bad_onnx_file_is_422_and_makes_no_job(shared: TestClient, body: dict[str, Any], field: str) -> None:
    before = [job["id"] for job in shared.get("/v1/jobs").json()["items"]]
    answer = shared.post("/v1/models:capture", json=body)
    assert (answer.status_code, answer.json()["field"]) == (422, field), answer.text
    assert [job["id"] for job in shared.get("/v1/jobs").json()["items"]] == before
