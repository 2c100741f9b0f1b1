"""What every route promises: idempotency keys, ETags, cursors and filters, request ids, headers, metrics."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from starlette.testclient import TestClient

from autosbp.service.auth.caller import SCOPES, anonymous_caller
from autosbp.service.http.middleware import SECURITY_HEADERS
from autosbp.service.jobs._base import JobKind
from autosbp.service.jobs.change_feed import Follower
from autosbp.service.models import JobRow, ReplayRow, now
from autosbp.service.services import keys
from autosbp.service.services.audit import delete_expired
from autosbp.service.settings import Settings
from tests.service import documents
from tests.service.conftest import running, state_of

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A service whose captures are done at once and store nothing."""
    done = JobKind("tests.service.tasks:echo", lambda _, __: {}, lambda _, __, found: found, True)
    with running(Settings(data_dir=tmp_path_factory.mktemp("shared")), {"capture": done}) as client:
        yield client


def key(text: str) -> dict[str, str]:
    return {"idempotency-key": text}


def test_a_post_that_is_repeated_under_its_key_is_done_once_and_answered_again(shared: TestClient) -> None:
    body = {"hf_config": {"model_type": "abacus"}}
    first = shared.post("/v1/models:capture", json=body, headers=key("one"))
    again = shared.post("/v1/models:capture", json=body, headers=key("one"))
    assert (first.status_code, again.status_code) == (202, 202)
    assert again.content == first.content
    assert {name: again.headers[name] for name in ("location", "etag")} == {
        name: first.headers[name] for name in ("location", "etag")
    }
    assert again.headers["idempotency-replayed"] == "true" and "idempotency-replayed" not in first.headers
    without = [shared.post("/v1/models:capture", json=body).json()["id"] for _ in range(2)]
    assert len({first.json()["id"], *without}) == 3

    other = shared.post("/v1/models:capture", json={"hf_config": {"model_type": "sundial"}}, headers=key("one"))
    elsewhere = shared.post("/v1/clusters", json=body, headers=key("one"))
    for refused in (other, elsewhere):
        assert refused.status_code == 422
        assert refused.json()["type"] == "urn:autosbp:problem:idempotency-key-reused"


def test_requests_at_once_under_one_key_make_one_job(shared: TestClient) -> None:
    body = {"hf_config": {"model_type": "abacus"}}
    with ThreadPoolExecutor(8) as pool:
        answers = list(
            pool.map(lambda _: shared.post("/v1/models:capture", json=body, headers=key("at-once")), range(16))
        )
    assert {answer.status_code for answer in answers} <= {202, 409}
    assert len({answer.json()["id"] for answer in answers if answer.status_code == 202}) == 1
    assert all(answer.headers["retry-after"] == "1" for answer in answers if answer.status_code == 409)


def test_a_refused_request_gives_its_key_back(shared: TestClient) -> None:
    assert shared.post("/v1/clusters", json={"preset": "nonsense:1"}, headers=key("back")).status_code == 422
    assert shared.post("/v1/clusters", json={"preset": "local:5"}, headers=key("back")).status_code == 201


@pytest.mark.parametrize("text", ["", "x" * 256, "two words"])
def test_a_bad_key_is_refused(shared: TestClient, text: str) -> None:
    answer = shared.post("/v1/clusters", json={"preset": "local:5"}, headers=key(text))
    assert (answer.status_code, answer.json()["field"]) == (422, "idempotency-key")


def test_a_job_whose_answer_was_lost_in_a_crash_is_not_made_twice(settings: Settings) -> None:
    body = {"hf_config": {"model_type": "abacus"}}
    with running(settings) as client:
        job = client.post("/v1/models:capture", json=body, headers=key("lost")).json()
        state = state_of(client)
        with state.database.write() as session:  # as the crash leaves it: the key is taken, no answer is kept
            row = session.query(ReplayRow).one()
            row.status = row.body = row.headers = None
        assert client.post("/v1/models:capture", json=body, headers=key("lost")).status_code == 409
        with state.database.write() as session:
            session.query(ReplayRow).one().created_at = now() - timedelta(minutes=2)
        again = client.post("/v1/models:capture", json=body, headers=key("lost"))
        assert (again.status_code, again.json()["id"]) == (202, job["id"])
        with state.database.write() as session:
            assert session.query(JobRow).count() == 1
            session.query(ReplayRow).one().expires_at = now()
        delete_expired(state.database, settings)
        with state.database.read() as session:
            assert session.query(ReplayRow).count() == 0


def test_stored_resources_have_etags_and_are_not_sent_twice(shared: TestClient, ids: dict[str, Any]) -> None:
    job = shared.post("/v1/models:capture", json={"hf_config": {"model_type": "abacus"}}).json()
    documents.wait(shared, job["id"])
    paths = [
        f"/v1/models/{ids['model_id']}",
        f"/v1/models/{ids['model_id']}/graph",
        f"/v1/clusters/{ids['cluster_id']}",
        f"/v1/calibrations/{ids['calibration_id']}",
        f"/v1/jobs/{job['id']}",
    ]
    for path in paths:
        tag = shared.get(path).headers["etag"]
        for known in (tag, f'"other", W/{tag}', "*"):
            again = shared.get(path, headers={"if-none-match": known})
            assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag), path
        assert shared.get(path, headers={"if-none-match": '"other"'}).status_code == 200


def test_what_has_changed_is_not_changed_under_an_old_etag(shared: TestClient) -> None:
    model = shared.post("/v1/models", json={**documents.graph(), "name": "doomed"})
    path, tag = model.headers["location"], model.headers["etag"]
    refused = shared.delete(path, headers={"if-match": '"another"'})
    assert (refused.status_code, refused.json()["type"]) == (412, "urn:autosbp:problem:changed")
    assert shared.delete(path, headers={"if-match": tag}).status_code == 204

    job = shared.post("/v1/models:capture", json={"hf_config": {"model_type": "abacus"}})
    done = documents.wait(shared, job.json()["id"])
    stale = shared.post(f"/v1/jobs/{done['id']}:cancel", headers={"if-match": job.headers["etag"]})
    assert stale.status_code == 412


def test_lists_are_filtered_and_their_cursors_stand_inserts(shared: TestClient) -> None:
    ids = [shared.post("/v1/clusters", json={"preset": f"local:{count}"}).json()["id"] for count in range(20, 27)]
    query: dict[str, Any] = {"limit": 3}
    page = shared.get("/v1/clusters", params=query).json()
    newer = shared.post("/v1/clusters", json={"preset": "local:99"}).json()
    rest = shared.get("/v1/clusters", params={"limit": 4, "cursor": page["next_cursor"]}).json()["items"]
    assert [item["id"] for item in page["items"] + rest] == ids[::-1]

    def listed(**query: Any) -> list[str]:
        return [item["id"] for item in shared.get("/v1/clusters", params=query).json()["items"]]

    assert listed(num_devices=99) == listed(name="local:99") == [newer["id"]]
    assert listed(created_after=newer["created_at"]) == [newer["id"]]
    assert newer["id"] not in listed(created_before=newer["created_at"])
    assert shared.get("/v1/clusters", params={"created_after": "yesterday"}).status_code == 422


def test_requests_have_ids_in_answers_and_logs(shared: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "autosbp.service.access"):
        given = shared.get("/v1/nothing", headers={"x-request-id": "ci-7.2"})
        own = shared.get("/healthz", headers={"x-request-id": "not an id"})
    assert given.headers["x-request-id"] == "ci-7.2"
    assert own.headers["x-request-id"].startswith("req-")
    assert "GET /v1/nothing 404" in caplog.text
    assert "GET /healthz 200" in caplog.text


def test_every_answer_has_the_security_headers(shared: TestClient) -> None:
    for path in ("/healthz", "/v1/clusters", "/v1/nothing", "/v1/clusters/clu-none"):
        headers = shared.get(path).headers
        assert {name: headers[name] for name in SECURITY_HEADERS} == SECURITY_HEADERS
        assert headers["cache-control"] and "server" not in headers


def test_metrics_count_requests_by_route_and_jobs_by_state(shared: TestClient) -> None:
    shared.get("/v1/clusters/clu-none")
    text = shared.get("/metrics").text
    assert 'autosbp_http_requests_total{method="GET",route="/v1/clusters/{cluster_id}",status="404"}' in text
    assert "autosbp_http_request_duration_seconds_bucket" in text
    assert 'autosbp_jobs{kind="capture",state="succeeded"}' in text
    assert "autosbp_event_streams 0.0" in text
    assert "process_resident_memory_bytes" in text


def test_deep_bodies_and_large_graphs_are_refused(settings: Settings) -> None:
    deep: Any = 1
    for _ in range(70):
        deep = [deep]
    with running(settings.model_copy(update={"max_ops": 2})) as client:
        answer = client.post("/v1/clusters", json={"a": deep})
        assert (answer.status_code, answer.json()["value"]) == (422, "nesting")
        answer = client.post("/v1/models", json=documents.graph())
        assert (answer.status_code, answer.json()["field"]) == (422, "nodes")


def test_a_tenants_queue_and_streams_are_limited(settings: Settings) -> None:
    with running(settings.model_copy(update={"max_queued_jobs_of_tenant": 1, "max_streams": 1})) as client:
        state = state_of(client)
        state.runner.stop()
        body = {"hf_config": {"model_type": "gpt2"}}
        job = client.post("/v1/models:capture", json=body).json()
        full = client.post("/v1/models:capture", json=body)
        assert (full.status_code, full.headers["retry-after"], full.json()["limit"]) == (429, "10", 1)
        state.feed._followers["other"].add(Follower("other", 0, anonymous_caller("")))
        assert client.get(f"/v1/jobs/{job['id']}/events").status_code == 429


def test_the_seconds_that_a_tenants_waiting_searches_may_take_are_limited(settings: Settings) -> None:
    with running(settings.model_copy(update={"max_queued_s_of_tenant": 60.0})) as client:
        state_of(client).runner.stop()
        model = client.post("/v1/models", json=documents.graph()).json()["id"]
        cluster = client.post("/v1/clusters", json=documents.cluster()).json()["id"]

        def search(seed: int, seconds: float, **more: int) -> Any:
            options = {**documents.OPTIONS, "seed": seed, "time_limit_s": seconds}
            asked = {"model_id": model, "cluster_id": cluster, "options": options, **more}
            return client.post("/v1/searches", json=asked)

        assert [search(1, 90.0).status_code, search(2, 1.0).status_code] == [202, 429]
        client.post(f"/v1/jobs/{client.get('/v1/jobs').json()['items'][0]['id']}:cancel")
        assert [search(3, 20.0).status_code, search(4, 10.0, num_points=4).status_code] == [202, 202]
        full = search(5, 1.0)
        assert (full.status_code, full.headers["retry-after"], full.json()["limit"]) == (429, "10", 60.0)
        assert full.json()["type"] == "urn:autosbp:problem:queue-full"
        assert full.json()["detail"].startswith("waiting jobs may take 60 s and this one 1 s more")


def test_one_tenants_streams_leave_room_for_others(settings: Settings) -> None:
    limits = {"max_streams": 5, "max_streams_of_tenant": 2, "require_keys": True}
    with running(settings.model_copy(update=limits)) as client:
        state = state_of(client)
        state.runner.stop()
        found = {}
        for tenant in ("one", "two"):
            key = keys.create(state.database.of(tenant), "test", SCOPES)
            headers = {"authorization": f"Bearer {key.text}"}
            job = client.post("/v1/models:capture", json={"hf_config": {"model_type": "gpt2"}}, headers=headers).json()[
                "id"
            ]
            found[tenant] = job, headers
        for _ in range(2):
            state.feed._followers["other"].add(Follower("other", 0, replace(anonymous_caller(""), tenant="one")))
        answers = {
            tenant: client.head(f"/v1/jobs/{job}/events", headers=headers) for tenant, (job, headers) in found.items()
        }
        assert (answers["one"].status_code, answers["two"].status_code) == (429, 200)
        refused = client.get(f"/v1/jobs/{found['one'][0]}/events", headers=found["one"][1])
        assert "2 event streams of this tenant" in refused.json()["detail"]
