"""Query parameters: what a route does not have is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.service.auth.test_auth_matrix import NAMES, call
from tests.service.endpoints import endpoints
from tests.service.test_openapi import operations


def test_every_route_refuses_a_query_parameter_that_it_does_not_have(shared: TestClient) -> None:
    app: Any = shared.app
    described = {f"{method.upper()} {path}" for path, method, _ in operations(shared.get("/openapi.json").json())}
    seen = 0
    for one in endpoints(app):
        if str(one) in described:
            answer = call(shared, one, {**NAMES}, {}, query={"surprise": "1"})
            assert (answer.status_code, answer.json()["field"]) == (422, "surprise"), str(one)
            seen += 1
    assert seen == len(described) > 40


@pytest.mark.parametrize(
    ("query", "field"),
    [("limit=1&limit=2", "limit"), ("Limit=1", "Limit"), ("=1", "query"), ("stat=queued", "stat")],
)
def test_an_unknown_query_parameter_is_named_with_the_known_ones(shared: TestClient, query: str, field: str) -> None:
    answer = shared.get(f"/v1/jobs?{query}")
    assert (answer.status_code, answer.json()["field"]) == (422, field)
    assert (
        "duplicate" in answer.json()["limit"]
        or "created_after, created_before, cursor, kind, limit, state" in answer.text
    )


def test_pages_accept_unknown_query_parameters(shared: TestClient) -> None:
    assert shared.get("/models?utm_source=mail", headers={"accept": "text/html"}).status_code == 200


def test_operations_have_plain_names(shared: TestClient) -> None:
    names = [each["operationId"] for _, _, each in operations(shared.get("/openapi.json").json())]
    assert len(names) == len(set(names))
    assert {"list_jobs", "get_job", "cancel_job", "create_search", "delete_model", "get_health"} <= set(names)
    assert all(name.replace("_", "").isalpha() and name.islower() and "_v1_" not in name for name in names), names
    kinds = shared.get("/openapi.json").json()["components"]["schemas"]["Job"]["properties"]["kind"]["enum"]
    assert kinds == ["capture", "calibrate", "search", "trial", "tune", "why", "what-if"]
