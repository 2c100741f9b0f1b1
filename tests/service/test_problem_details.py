"""Every error is a problem document."""

from __future__ import annotations

import math

import pytest
from starlette.testclient import TestClient

from autosbp.errors import (
    CalibrationError,
    GraphError,
    InfeasibleError,
    InputError,
    ServiceError,
    TrialError,
    UnsupportedError,
)
from autosbp.service.problem_details import json_safe, problem_of
from autosbp.service.settings import Settings
from tests.service.conftest import running, state_of

MEMBERS = {"type", "title", "status", "detail", "instance"}


@pytest.mark.parametrize(
    ("error", "name", "status", "extra"),
    [
        (InputError("a.b", 3, "a string"), "invalid-input", 422, {"field": "a.b", "value": 3, "limit": "a string"}),
        (GraphError("nodes", None, "x"), "invalid-input", 422, {"field": "nodes", "value": None, "limit": "x"}),
        (InfeasibleError("m", 1.0, None), "infeasible", 422, {"constraint": "m", "limit": 1.0, "needed": None}),
        (InfeasibleError("m", 1.0, math.inf), "infeasible", 422, {"constraint": "m", "limit": 1.0, "needed": None}),
        (
            *(InfeasibleError("pins", "a=B", None, "", ("pins.a=B", "stages=2")), "infeasible", 422),
            {"constraint": "pins", "limit": "a=B", "needed": None, "conflict": ["pins.a=B", "stages=2"]},
        ),
        (UnsupportedError("op x"), "unsupported", 422, {}),
        (CalibrationError("rank 3"), "calibration-failed", 500, {}),
        (TrialError("rank 3"), "trial-failed", 500, {}),
        (ServiceError("gone"), "failed", 500, {}),
        (RuntimeError("inside"), "internal", 500, {}),
    ],
)
def test_each_error_of_the_tree_has_its_problem(
    error: Exception, name: str, status: int, extra: dict[str, object]
) -> None:
    document = problem_of(error, "/here")
    assert document.keys() == MEMBERS | extra.keys()
    assert (document["type"], document["status"]) == (f"urn:autosbp:problem:{name}", status)
    assert document["instance"] == "/here"
    assert {key: document[key] for key in extra} == extra
    assert "inside" not in document["detail"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (math.nan, None),
        ("ok", "ok"),
        ([1, {"a": None}], [1, {"a": None}]),
        ([math.inf], "'list'"),
        ("\ud800", "'\\ud800'"),
        ((1, 2), (1, 2)),
        (object, "<class 'object'>"),
    ],
)
def test_a_value_is_shown_as_json_or_as_text(value: object, text: object) -> None:
    assert json_safe(value) == text


def test_a_large_value_is_cut() -> None:
    assert len(json_safe("x" * 10_000)) == 500
    assert len(json_safe(["x" * 10_000])) == 500
    many = json_safe({str(number): [] for number in range(1000)})
    assert many.startswith("{'0': [], '1': []") and len(many) == 500


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("GET", "/v1/nothing", 404),
        ("GET", "/v1/models/mod-none", 404),
        ("GET", "/v1/models/mod-none/graph", 404),
        ("DELETE", "/v1/models/mod-none", 404),
        ("GET", "/v1/clusters/clu-none", 404),
        ("GET", "/v1/calibrations/cal-none", 404),
        ("GET", "/v1/searches/sea-none", 404),
        ("GET", "/v1/strategies/plan-none", 404),
        ("GET", "/v1/trials/tri-none", 404),
        ("GET", "/v1/trials/tri-none/logs", 404),
        ("GET", "/v1/jobs/job-none", 404),
        ("GET", "/v1/jobs/job-none/events", 404),
        ("POST", "/v1/jobs/job-none:cancel", 404),
        ("PUT", "/v1/models", 405),
        ("DELETE", "/v1/audit", 405),
        ("POST", "/healthz", 405),
        ("GET", "/v1/models/%20bad%20", 422),
        ("GET", "/v1/models/" + "x" * 65, 422),
        ("GET", "/v1/models/..%2f..%2fetc%2fpasswd", 404),
        ("GET", "/v1/trials/..", 404),
        ("GET", "/v1/jobs/-", 422),
        ("GET", "/v1/models?limit=0", 422),
        ("GET", "/v1/models?limit=201", 422),
        ("GET", "/v1/models?limit=x", 422),
        ("GET", "/v1/models?cursor=x", 422),
        ("GET", "/v1/models?cursor=%00", 422),
        ("GET", "/v1/models?cursor=bm9uZSBh", 422),
        ("GET", "/v1/jobs?state=asleep", 422),
        ("GET", "/v1/jobs?kind=none", 422),
        ("GET", "/v1/strategies?model_id=%27", 422),
    ],
)
def test_a_refused_request_is_answered_with_a_problem(shared: TestClient, method: str, path: str, status: int) -> None:
    answer = shared.request(method, path)
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
    document = answer.json()
    assert document.keys() >= MEMBERS
    assert document["status"] == status
    assert document["instance"].startswith("/")
    if status == 422:
        assert {"field", "value", "limit"} <= document.keys()
    if status == 405:
        assert "allow" in answer.headers


def test_an_internal_error_is_an_opaque_500(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a secret of the inside")

    monkeypatch.setattr("autosbp.service.services.clusters.listing", fail)
    with running(settings) as client:
        answer = client.get("/v1/clusters")
    assert (answer.status_code, answer.headers["content-type"]) == (500, "application/problem+json")
    assert answer.json()["type"] == "urn:autosbp:problem:internal"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert f"[{answer.headers['x-request-id']}]" not in answer.text
    assert "secret" not in answer.text
    assert "a secret of the inside" in caplog.text


def test_a_full_queue_is_429_with_retry_after(settings: Settings) -> None:
    with running(settings.model_copy(update={"max_queued_jobs": 1})) as client:
        state = state_of(client)
        state.runner.stop()
        assert client.post("/v1/models:capture", json={"hf_config": {"model_type": "gpt2"}}).status_code == 202
        answer = client.post("/v1/models:capture", json={"hf_config": {"model_type": "gpt2"}})
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "10")
        assert answer.json()["type"] == "urn:autosbp:problem:queue-full"
        assert len(client.get("/v1/jobs").json()["items"]) == 1
