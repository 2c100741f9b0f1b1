"""The documentation at /openapi.json, and the health routes."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from starlette.testclient import TestClient

import autosbp
from autosbp.service.testing.typed_documents import typed_documents
from tests.service.conftest import state_of
from tests.service.server import ROOT


@pytest.fixture
def document(shared: TestClient) -> dict[str, Any]:
    answer: dict[str, Any] = shared.get("/openapi.json").json()
    return answer


def operations(document: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [(path, method, one) for path, item in document["paths"].items() for method, one in item.items()]


def test_every_route_has_one_tag_a_summary_and_a_description(document: dict[str, Any]) -> None:
    known = {tag["name"] for tag in document["tags"]}
    assert len(operations(document)) >= 36
    for path, method, operation in operations(document):
        assert len(operation["tags"]) == 1 and set(operation["tags"]) <= known, (path, method)
        assert operation["summary"] and operation["description"], (path, method)


def test_every_error_of_a_route_is_documented_as_a_problem(document: dict[str, Any]) -> None:
    problem = {"schema": {"$ref": "#/components/schemas/Problem"}}
    for path, method, operation in operations(document):
        errors = {status: answer for status, answer in operation["responses"].items() if int(status) >= 400}
        if path.startswith("/v1/"):
            assert {"401", "403", "422", "429", "500", "503"} <= errors.keys(), (path, method)
        if method == "post":
            assert {"409", "413", "415", "507"} <= errors.keys(), (path, method)
            assert "Idempotency-Key" in {one["name"] for one in operation["parameters"]}, (path, method)
        if "{" in path:
            assert "404" in errors, (path, method)
        for answer in errors.values():
            assert answer["content"] == {"application/problem+json": problem}, (path, method)


def test_the_document_is_the_one_that_is_checked_in(document: dict[str, Any]) -> None:
    stored = json.loads((ROOT / "docs" / "openapi.json").read_text())
    assert stored == document, (
        "the interface has changed: look at the difference, count API_VERSION up, run scripts/openapi"
    )


def test_a_version_means_one_document(document: dict[str, Any]) -> None:
    """Whoever changes the interface, if only its words, counts the version up."""
    version = document["info"]["version"]
    versions = json.loads((ROOT / "docs" / "openapi_versions.json").read_text())
    stored = hashlib.sha256((ROOT / "docs" / "openapi.json").read_bytes()).hexdigest()
    assert versions.get(version) == stored, f"{version} was another document: count API_VERSION up, run scripts/openapi"
    assert [*versions] == sorted(versions, key=lambda text: [*map(int, text.split("."))]) and [*versions][-1] == version


def test_the_types_of_the_client_are_those_of_the_document(document: dict[str, Any]) -> None:
    module = ROOT / "autosbp" / "client" / "documents.py"
    assert module.read_text() == typed_documents(document), "run scripts/openapi"


def test_every_reference_resolves(document: dict[str, Any]) -> None:
    def references(value: Any) -> list[str]:
        if isinstance(value, dict):
            own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
            return own + [found for item in value.values() for found in references(item)]
        return [found for item in value for found in references(item)] if isinstance(value, list) else []

    for reference in references(document):
        target: Any = document
        for part in reference.removeprefix("#/").split("/"):
            target = target[part]


def test_health_tells_the_version(shared: TestClient) -> None:
    assert shared.get("/healthz").json() == {"status": "ok", "version": autosbp.__version__}


def test_the_service_is_ready_until_its_runner_has_stopped(client: TestClient) -> None:
    assert client.get("/readyz").json() == {"status": "ok", "checks": {"database": "ok", "runner": "ok", "disk": "ok"}}
    state = state_of(client)
    state.runner.stop()
    answer = client.get("/readyz")
    assert (answer.status_code, answer.headers["content-type"]) == (503, "application/problem+json")
    assert answer.json()["detail"] == "no job is running"
    assert client.get("/healthz").status_code == 200
