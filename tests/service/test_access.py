"""API keys: who is let in, what each may do, and that tenants never see each other."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select
from starlette.testclient import TestClient

from service.access.caller import SCOPES
from service.access.rates import Rates
from service.access.tokens import Token
from service.models import KeyRow, now
from service.services import keys
from service.settings import Settings
from tests.service import documents
from tests.service.conftest import running, state_of
from tests.service.test_openapi import operations

OPEN = {"/healthz", "/readyz"}
IDS = {
    "model_id": "mod-1",
    "cluster_id": "clu-1",
    "calibration_id": "cal-1",
    "search_id": "sea-1",
    "strategy_id": "plan-1",
    "other_id": "plan-2",
    "analysis_id": "ana-1",
    "trial_id": "tri-1",
    "job_id": "job-1",
    "key_id": "key-1",
    "target": "dtensor",
}


def made(client: TestClient, tenant: str, *scopes: str, lifetime: timedelta | None = None) -> dict[str, str]:
    """The header of a new key."""
    key = keys.create(state_of(client).database.of(tenant), "test", scopes or SCOPES, lifetime)
    return {"authorization": f"Bearer {key.text}"}


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A service that needs keys."""
    folder = tmp_path_factory.mktemp("locked")
    with running(Settings(data_dir=folder, require_keys=True, rate_limit_burst=5000)) as client:
        yield client


def test_every_route_is_closed_to_whoever_has_not_its_scope(
    locked: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_of(locked).gate, "_failures", Rates(1e6, 1e6))
    document: dict[str, Any] = locked.get("/openapi.json").json()
    by_scope = {scope: made(locked, "matrix", scope) for scope in SCOPES}
    known = Token.parse(by_scope["read"]["authorization"].removeprefix("Bearer "))
    assert known is not None
    strangers = {
        "no key": {},
        "no bearer": {"authorization": by_scope["read"]["authorization"].replace("Bearer", "Basic")},
        "malformed": {"authorization": "Bearer nonsense"},
        "unknown": {"authorization": f"Bearer {Token.new()}"},
        "wrong secret": {"authorization": f"Bearer {Token(known.prefix, Token.new().secret)}"},
        "expired": made(locked, "matrix", *SCOPES, lifetime=timedelta(seconds=-1)),
    }
    checked = 0
    for path, method, operation in operations(document):
        url = path.format(**IDS)
        if path in OPEN:
            assert "security" not in operation
            assert locked.request(method, url).status_code == 200
            continue
        allowed = {requirement["key"][0] for requirement in operation["security"]}
        body = {"json": {}} if method == "post" else {}
        for name, header in strangers.items():
            answer = locked.request(method, url, headers=header, **body)
            assert answer.status_code == 401, (method, path, name)
            assert answer.headers["www-authenticate"].startswith("Bearer"), (method, path, name)
            assert answer.headers["content-type"] == "application/problem+json"
            checked += 1
        for scope, header in by_scope.items():
            answer = locked.request(method, url, headers=header, **body)
            assert (answer.status_code == 403) == (scope not in allowed), (method, path, scope, answer.text)
            assert answer.status_code not in (401, 500), (method, path, scope)
            checked += 1
    assert checked >= 11 * 36


def test_a_tenant_reaches_nothing_of_another(locked: TestClient) -> None:
    mine, theirs = made(locked, "mine"), made(locked, "theirs")
    calibration = locked.post("/v1/calibrations", json=documents.calibration(), headers=mine).json()
    model = locked.post("/v1/models", json=documents.graph(), headers=mine).json()
    asked = {"model_id": model["id"], "cluster_id": calibration["cluster_id"], "options": documents.OPTIONS}
    job = locked.post("/v1/searches", json=asked, headers={**mine, "idempotency-key": "k"}).json()

    def wait(job_id: str) -> dict[str, Any]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(locked.headers, "authorization", mine["authorization"])
            return documents.wait(locked, job_id)

    done = wait(job["id"])
    assert done["state"] == "succeeded", done
    strategy = done["result"]["strategy_id"]
    ids = {
        **IDS,
        "model_id": model["id"],
        "cluster_id": calibration["cluster_id"],
        "calibration_id": calibration["id"],
        "search_id": done["result"]["search_id"],
        "strategy_id": strategy,
        "other_id": strategy,
        "job_id": job["id"],
        "key_id": locked.get("/v1/keys", headers=mine).json()["items"][0]["id"],
    }
    analysis = locked.post(f"/v1/strategies/{strategy}/why", json={"op": "*"}, headers=mine).json()
    ids["analysis_id"] = analysis["resource"].rpartition("/")[2]
    trial = locked.post("/v1/trials", json={"strategy_id": strategy}, headers=mine).json()
    ids["trial_id"] = trial["resource"].rpartition("/")[2]
    locked.post(f"/v1/jobs/{trial['id']}:cancel", headers=mine)
    for path, method, _ in operations(locked.get("/openapi.json").json()):
        if "{" in path:
            body = {"json": {"op": "x"} if path.endswith("/why") else {}} if method == "post" else {}
            answer = locked.request(method, path.format(**ids), headers=theirs, **body)
            assert answer.status_code == 404, (method, path, answer.text)
        elif method == "get" and path.startswith("/v1/") and path not in ("/v1/keys", "/v1/audit"):
            assert locked.get(path, headers=mine).json()["items"], path
            assert locked.get(path, headers=theirs).json()["items"] == [], path
    for listed in ("/v1/keys", "/v1/audit"):
        own, others = (
            {item["id"] for item in locked.get(listed, headers=who).json()["items"]} for who in (mine, theirs)
        )
        assert own and not own & others

    refused = locked.post("/v1/searches", json=asked, headers={**theirs, "idempotency-key": "k"})
    assert (refused.status_code, refused.json()["field"]) == (422, "model_id"), "no replay of another tenant's answer"
    assert locked.post("/v1/models", json=documents.graph(), headers=theirs).status_code == 201, "not 'already stored'"
    assert locked.post("/v1/clusters", json={"preset": documents.CLUSTER}, headers=theirs).status_code == 201
    again = locked.post("/v1/searches", json=asked, headers=theirs)
    assert (again.status_code, again.json()["id"] != job["id"]) == (202, True), "no answer from another tenant's store"
    locked.post(f"/v1/jobs/{again.json()['id']}:cancel", headers=theirs)
    assert locked.get(f"/v1/models/{model['id']}", headers=mine).status_code == 200


def test_keys_are_made_rotated_and_revoked_over_http(locked: TestClient) -> None:
    admin = made(locked, "keys", "admin")
    body = {"name": "ci", "scopes": ["search", "read"], "lifetime_s": 60.0}
    first = locked.post("/v1/keys", json=body, headers={**admin, "idempotency-key": "make"})
    key = first.json()
    assert (first.status_code, key["scopes"], key["state"]) == (201, ["read", "search"], "valid")
    assert key["secret"].startswith(f"asbp_{key['prefix']}_")
    replay = locked.post("/v1/keys", json=body, headers={**admin, "idempotency-key": "make"})
    assert replay.json() == {**key, "secret": None}, "a secret is shown once and stored nowhere"

    def works(text: str) -> int:
        return locked.get("/v1/models", headers={"authorization": f"Bearer {text}"}).status_code

    assert works(key["secret"]) == 200
    rotated = locked.post(f"/v1/keys/{key['id']}:rotate", json={"grace_s": 0.0}, headers=admin).json()
    assert (works(key["secret"]), works(rotated["secret"])) == (401, 200)
    assert locked.post(f"/v1/keys/{key['id']}:rotate", json={}, headers=admin).status_code == 409
    revoked = locked.delete(f"/v1/keys/{rotated['id']}", headers=admin).json()
    assert (revoked["state"], works(rotated["secret"])) == ("revoked", 401)
    listed = locked.get("/v1/keys", headers=admin).json()["items"]
    assert [item["state"] for item in listed] == ["revoked", "expired", "valid"]
    assert all("secret" not in item for item in listed)
    with state_of(locked).database.read() as session:
        dump = str(session.execute(select(KeyRow.__table__)).all())
    assert not any(part["secret"].rpartition("_")[2] in dump for part in (key, rotated))
    assert locked.post("/v1/keys", json={**body, "scopes": ["root"]}, headers=admin).status_code == 422


def test_the_audit_log_says_who_did_what_and_who_was_refused(locked: TestClient) -> None:
    admin = made(locked, "audit", "admin")
    writer, reader = made(locked, "audit", "search"), made(locked, "audit", "read")
    locked.post("/v1/clusters", json={"preset": "local:2"}, headers={**writer, "x-request-id": "req-a"})
    locked.post("/v1/clusters", json={"preset": "nonsense:2"}, headers=writer)
    locked.post("/v1/clusters", json={"preset": "local:2"}, headers=reader)
    locked.get("/v1/clusters", headers=reader)
    log = locked.get("/v1/audit", headers=admin).json()["items"]
    assert [(entry["method"], entry["path"], entry["status"]) for entry in log] == [
        ("POST", "/v1/clusters", 403),
        ("POST", "/v1/clusters", 422),
        ("POST", "/v1/clusters", 201),
    ]
    assert (log[2]["request_id"], log[2]["address"]) == ("req-a", "testclient")
    assert log[2]["location"].startswith("/v1/clusters/clu-")
    assert len({entry["caller"] for entry in log}) == 2
    only = locked.get("/v1/audit", params={"status": 403}, headers=admin).json()["items"]
    assert only == log[:1]


def test_keys_are_needed_as_soon_as_there_is_one(settings: Settings) -> None:
    with running(settings) as client:
        assert client.get("/v1/models").status_code == 200
        key = client.post("/v1/keys", json={"name": "first", "scopes": ["read"]}).json()
        assert client.get("/v1/models").status_code == 401
        assert client.get("/v1/models", headers={"authorization": f"Bearer {key['secret']}"}).status_code == 200
        keys.revoke(state_of(client).database.of("default"), key["id"])
        time.sleep(1.05)  # as another process' revocation, it is seen within a second
        assert client.get("/v1/models").status_code == 401, "revoking the last key opens nothing"


def test_without_keys_only_this_machines_own_name_is_answered(client: TestClient) -> None:
    for host in ("localhost", "localhost:8000", "127.0.0.1:1", "[::1]:8000", "[::1]"):
        assert client.get("/v1/models", headers={"host": host}).status_code == 200, host
    for host in ("evil.example", "evil.example:8000", "127.0.0.1.evil.example", ""):
        assert client.get("/v1/models", headers={"host": host}).status_code == 403, host


def test_too_many_requests_of_one_key_are_429_with_retry_after(settings: Settings) -> None:
    slow = settings.model_copy(update={"rate_limit_per_s": 0.1, "rate_limit_burst": 2})
    with running(slow) as client:
        assert [client.get("/v1/models").status_code for _ in range(3)] == [200, 200, 429]
        refused = client.get("/v1/models")
        assert refused.json()["type"] == "urn:autosbp:problem:too-many-requests"
        assert 1 <= int(refused.headers["retry-after"]) <= 11


def test_guesses_of_keys_are_slowed_down(settings: Settings) -> None:
    with running(settings.model_copy(update={"require_keys": True})) as client:
        answers = [client.get("/v1/models").status_code for _ in range(40)]
        assert set(answers[:30]) == {401} and set(answers[-5:]) == {429}


def test_rates_fill_up_again_and_forget_the_least_recent_names() -> None:
    clock = [0.0]
    rates = Rates(2.0, 2.0, lambda: clock[0])
    assert [rates.take("a") for _ in range(3)] == [0.0, 0.0, 0.5]
    clock[0] = 0.5
    assert (rates.take("a"), rates.take("a")) == (0.0, 0.5)
    for name in range(10_001):
        rates.take(str(name))
    assert rates.take("a") == 0.0 and len(rates._buckets) == 10_000


def test_a_key_is_read_back_and_its_hash_depends_on_its_salt() -> None:
    token = Token.new()
    assert Token.parse(str(token)) == token
    assert token.matches("a", token.hashed("a")) and not token.matches("b", token.hashed("a"))
    assert Token.parse(str(token) + "x") is None and now()
