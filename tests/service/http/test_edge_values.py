"""Values at the edges of what databases, calendars and paths can hold: each is accepted or refused by name, never a 500."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from autosbp.service.schemas import options
from autosbp.service.settings import Settings
from tests.service import documents
from tests.service.conftest import running, state_of
from tests.service.endpoints import endpoints
from tests.service.postgres import Postgres
from tests.service.test_openapi import operations

pytestmark = pytest.mark.integration

MOMENTS = ("0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "2026-01-31", "2026-01-31T12:00:00.5")
FAR_CURSORS = ("0000000000000000.a", "9999999999999999.zzz")


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def edged(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    server: Postgres | None = request.getfixturevalue("postgres") if request.param == "postgresql" else None
    folder = tmp_path_factory.mktemp("edged")
    with running(Settings(data_dir=folder, database_url=server.database() if server else None)) as client:
        yield client


def test_moments_at_the_ends_of_the_calendar_are_moments(edged: TestClient) -> None:
    for moment in MOMENTS:
        for name in ("created_after", "created_before"):
            answer = edged.get("/v1/models", params={name: moment})
            assert answer.status_code == 200, (moment, answer.text)


@pytest.mark.parametrize("moment", ["0.5", "1700000000", "-1", "yesterday", "2026-13-01T00:00:00Z", "\x00"])
def test_what_is_no_moment_is_refused(edged: TestClient, moment: str) -> None:
    answer = edged.get("/v1/models", params={"created_before": moment})
    assert (answer.status_code, answer.json()["field"]) == (422, "created_before")


def test_every_cursor_of_the_documented_form_is_a_place(edged: TestClient) -> None:
    stored = edged.post("/v1/clusters", json={"preset": "local:3"}).json()
    assert [edged.get("/v1/clusters", params={"cursor": one}).status_code for one in FAR_CURSORS] == [200, 200]
    assert edged.get("/v1/clusters", params={"cursor": FAR_CURSORS[1]}).json()["items"][0]["id"] == stored["id"]


@pytest.mark.parametrize(
    "cursor", ["", "x", "MDAwMS0wMS0wMVQwMDowMDowMCsyMzo1OSBh", "0000000000000000.\x00", "12.a", "٠" * 16 + ".a"]
)
def test_other_cursors_are_refused(edged: TestClient, cursor: str) -> None:
    answer = edged.get("/v1/clusters", params={"cursor": cursor})
    assert (answer.status_code, answer.json()["field"]) == (422, "cursor")


@pytest.mark.parametrize(
    ("path", "name", "value"),
    [
        ("clusters", "num_devices", 2**70),
        ("clusters", "num_devices", 0),
        ("clusters", "name", "a\x00"),
        ("models", "source", "\x00"),
        ("models", "name", "n" * 513),
        ("strategies", "searcher", "\x00"),
        ("audit", "method", "\x00"),
        ("audit", "status", 10**30),
    ],
)
def test_filters_that_a_database_cannot_hold_are_refused(edged: TestClient, path: str, name: str, value: Any) -> None:
    answer = edged.get(f"/v1/{path}", params={name: value})
    assert (answer.status_code, answer.json()["field"]) == (422, name)


def test_names_are_stored_up_to_what_an_index_holds(edged: TestClient) -> None:
    most = "".join(chr(0x10000 + 7 * number) for number in range(512))
    for path, body in (("models", documents.graph()), ("clusters", documents.cluster())):
        assert edged.post(f"/v1/{path}", json={**body, "name": most}).status_code == 201
        assert edged.get(f"/v1/{path}", params={"name": most}).json()["items"][0]["name"] == most
        refused = edged.post(f"/v1/{path}", json={**body, "name": most + "x"})
        assert (refused.status_code, refused.json()["field"]) == (422, "name")


def test_a_whole_number_is_an_integer_however_it_is_written(edged: TestClient) -> None:
    body = b'{"model_id": "mod-none", "cluster_id": "clu-none", "num_points": 2.0, "options": {"seed": 1.0}}'
    answer = edged.post("/v1/searches", content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["field"]) == (422, "model_id"), "all else was accepted"
    body = body.replace(b"2.0", b"2.5")
    answer = edged.post("/v1/searches", content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["field"]) == (422, "num_points")


def test_405_names_all_methods_of_the_path_and_of_no_other(edged: TestClient) -> None:
    document = edged.get("/openapi.json").json()
    for path, methods in {path: {one.upper() for one in item} for path, item in document["paths"].items()}.items():
        answer = edged.request("PATCH", re.sub(r"\{\w+\}", "a-1", path))
        assert answer.status_code == 405, path
        assert set(answer.headers["allow"].split(", ")) == (methods | {"HEAD"} if "GET" in methods else methods), path
    assert edged.get("/v1/jobs/job-1:cancel").status_code == 405
    page = edged.request("PATCH", "/plan", headers={"accept": "text/html"})
    assert (page.status_code, page.headers["allow"]) == (405, "GET, HEAD, POST")


def test_the_documented_limits_of_options_are_the_librarys(edged: TestClient) -> None:
    schema = edged.get("/openapi.json").json()["components"]["schemas"]["PlanOptions"]["properties"]
    bounded = {name: one for name, one in schema.items() if "minimum" in one and "maximum" in one}
    assert {"global_batch", "seed", "stages", "recompute", "bucket_bytes", "memory_limit_bytes"} <= bounded.keys()
    for name, one in bounded.items():
        for value in (one["minimum"], one["maximum"]):
            options.PlanOptions.read({name: value}).checked()
        for value in (one["minimum"] - 1, one["maximum"] + 1):
            with pytest.raises(options.InputError):
                options.PlanOptions.read({name: value}).checked()
    for name in ("searcher", "optimizer", "storage"):
        for value in schema[name]["enum"]:
            options.PlanOptions.read({name: value}).checked()


def test_every_example_of_the_document_is_accepted(edged: TestClient) -> None:
    document = edged.get("/openapi.json").json()
    posted = 0
    for path, method, operation in operations(document):
        content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
        for name, example in content.get("examples", {}).items():
            value = dict(example["value"])
            if "cluster_id" in value:
                value["cluster_id"] = edged.post("/v1/clusters", json={"preset": "local:2"}).json()["id"]
            answer = edged.request(method, path, json=value)
            assert answer.status_code in (200, 201, 202), (path, name, answer.text)
            posted += 1
            if answer.status_code == 202:
                edged.post(f"/v1/jobs/{answer.json()['id']}:cancel")
    assert posted >= 7
    assert state_of(edged).runner.unhealthy_reason() is None


def test_a_slash_too_many_is_404_and_leads_nowhere(edged: TestClient) -> None:
    for path, accept in (("/v1/jobs/", "*/*"), ("/healthz/", "*/*"), ("/strategies/", "text/html")):
        answer = edged.get(path, headers={"accept": accept, "host": "localhost"}, follow_redirects=False)
        assert answer.status_code == 404 and "location" not in answer.headers, path
    assert edged.get("/v1/jobs/").headers["content-type"] == "application/problem+json"


def test_a_compressed_body_is_415_with_a_hint(edged: TestClient) -> None:
    for path, headers in (("/v1/clusters", {}), ("/plan", {"accept": "text/html", "origin": "http://localhost"})):
        kind = "application/x-www-form-urlencoded" if headers else "application/json"
        answer = edged.post(
            path, content=b"\x1f\x8b\x08", headers={"content-type": kind, "content-encoding": "gzip", **headers}
        )
        assert (answer.status_code, answer.headers["accept-encoding"]) == (415, "identity"), path
    plain = {"content-type": "application/json", "content-encoding": "identity"}
    assert edged.post("/v1/clusters", content=b'{"preset": "local:2"}', headers=plain).status_code in (200, 201)


def test_head_is_get_without_a_body(edged: TestClient) -> None:
    for job in edged.get("/v1/jobs", params={"limit": 100}).json()["items"]:  # pages say how they go
        documents.wait(edged, job["id"])
    app: Any = edged.app
    gets = [one for one in endpoints(app) if one.method == "GET"]
    assert len(gets) > 40
    for one in gets:
        path = re.sub(r"\{[\w:]+\}", "a-1", one.path)
        for accept in ("application/json", "text/html"):
            head, get = (edged.request(way, path, headers={"accept": accept}) for way in ("HEAD", "GET"))
            assert (head.status_code, head.content) == (get.status_code, b""), path
            for name in ("content-type", "etag", "allow", "content-length"):
                if name == "content-length" and path in ("/metrics", "/readyz"):
                    continue  # they say something else each time
                assert head.headers.get(name) == get.headers.get(name), (path, name)
    job = edged.post("/v1/models:capture", json={"hf_config": {"model_type": "gpt2"}}).json()["id"]
    stream = edged.head(f"/v1/jobs/{job}/events")
    assert stream.status_code == 200 and stream.headers["content-type"].startswith("text/event-stream")
    edged.post(f"/v1/jobs/{job}:cancel")
    assert edged.head(f"/v1/jobs/{job}:cancel").status_code == 405
    tag = edged.post("/v1/clusters", json={"preset": "local:2"}).headers["etag"]
    known = edged.get("/v1/clusters").json()["items"][0]["id"]
    assert edged.head(f"/v1/clusters/{known}", headers={"if-none-match": "*"}).status_code == 304 and tag
