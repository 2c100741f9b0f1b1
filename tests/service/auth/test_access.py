"""API keys: who is let in, what each may do, and that tenants never see each other."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select
from starlette.testclient import TestClient

from autosbp.service.auth.api_keys import ApiKey
from autosbp.service.auth.caller import SCOPES, rate_limit_address
from autosbp.service.auth.rate_limit import RateLimit
from autosbp.service.models import NO_TENANT, KeyRow, now
from autosbp.service.services import keys
from autosbp.service.services.audit import delete_expired, newest_entries
from autosbp.service.settings import Settings
from tests.service.conftest import running, state_of


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
    parts = [ApiKey.parse(one["secret"]) for one in (key, rotated)]
    assert not any(part is None or part.secret in dump for part in parts)
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


def test_operators_read_what_strangers_did_and_nothing_of_it_steers_a_terminal(locked: TestClient) -> None:
    operator = made(locked, "default", "admin")
    sent = "/v1/models/%1b]0;own%07%0a[red]%e2%80%ae" + "x" * 600
    for number in range(3):
        assert locked.get(sent, headers={"x-request-id": f"req-{number}"}).status_code == 401
    assert locked.get("/v1/clusters", headers={"authorization": "Bearer asbp_x"}).status_code == 401

    def read(**asked: Any) -> Any:
        return locked.get("/v1/audit", params={"strangers": True, **asked}, headers=operator).json()

    first = read(limit=3)
    rest = read(limit=3, cursor=first["next_cursor"])
    entries = [*first["items"], *rest["items"]]
    assert [each["request_id"] for each in entries[1:4]] == ["req-2", "req-1", "req-0"]
    assert {each["caller"] for each in entries} == {None} and entries[0]["path"] == "/v1/clusters"
    path = entries[1]["path"]
    assert path.startswith(r"/v1/models/\x1b]0;own\x07[red]\u202exxx") and len(path) == 512
    assert read(status=403)["items"] == [] and read(status=401, method="GET", limit=4)["items"] == entries[:4]
    own = locked.get("/v1/audit", headers=operator).json()["items"]
    assert not {each["id"] for each in own} & {each["id"] for each in entries}


def test_strangers_all_together_do_not_fill_the_audit_log(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autosbp.service.auth.authentication._AUDIT_RATE", (1.0, 5.0))
    given = {"require_keys": True, "audit_strangers": 2}
    with running(settings.model_copy(update=given)) as client:
        state = state_of(client)
        for _ in range(20):
            assert client.get("/v1/models").status_code == 401
        assert 5 <= len(newest_entries(state.database, NO_TENANT, None, 100)) < 12
        newest = [each.id for each in newest_entries(state.database, NO_TENANT, None, 2)]
        delete_expired(state.database, state.settings)
        assert [each.id for each in newest_entries(state.database, NO_TENANT, None, 100)] == newest


def test_keys_are_needed_as_soon_as_there_is_one(settings: Settings) -> None:
    with running(settings) as client:
        assert client.get("/v1/models").status_code == 200
        refused = client.post("/v1/keys", json={"name": "first", "scopes": ["read"]})
        assert (refused.status_code, refused.json()["field"], refused.json()["value"]) == (422, "scopes", "read")
        assert client.get("/v1/models").status_code == 200, "so nobody was locked out"
        key = client.post("/v1/keys", json={"name": "first", "scopes": ["read", "admin"]}).json()
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
    rates = RateLimit(2.0, 2.0, lambda: clock[0])
    assert [rates.take("a") for _ in range(3)] == [0.0, 0.0, 0.5]
    clock[0] = 0.5
    assert (rates.take("a"), rates.take("a")) == (0.0, 0.5)
    for name in range(10_001):
        rates.take(str(name))
    assert rates.take("a") == 0.0 and len(rates._buckets) == 10_000


def test_a_key_is_read_back_and_its_hash_depends_on_its_salt() -> None:
    token = ApiKey.new()
    assert ApiKey.parse(str(token)) == token
    assert token.matches("a", token.hashed("a")) and not token.matches("b", token.hashed("a"))
    assert ApiKey.parse(str(token) + "x") is None and now()


def test_who_shares_an_address_with_somebody_that_guesses_is_let_in(settings: Settings) -> None:
    with running(settings.model_copy(update={"require_keys": True, "wrong_keys_burst": 3})) as client:
        key = keys.create(state_of(client).database.of("lab"), "test", SCOPES).text
        good = {"authorization": f"Bearer {key}"}
        assert [client.get("/v1/models").status_code for _ in range(5)] == [401, 401, 401, 429, 429]
        assert client.get("/v1/models", headers=good).status_code == 200, "which was never seen before"
        wrong = {"authorization": good["authorization"][:-1] + ("A" if key[-1] != "A" else "B")}
        assert client.get("/v1/models", headers=wrong).status_code == 429
        form = {"origin": "http://localhost", "content-type": "application/x-www-form-urlencoded"}
        for text, status in ((wrong["authorization"][7:], 429), (key, 303)):
            answer = client.post("/sign-in", content=f"key={text}", headers=form, follow_redirects=False)
            assert answer.status_code == status
        assert client.get("/", headers={"accept": "text/html"}).status_code == 200


def test_the_networks_of_ipv6_are_counted_as_one_address() -> None:
    assert (
        rate_limit_address("2001:db8::1")
        == rate_limit_address("2001:db8::ffff:2")
        != rate_limit_address("2001:db8:0:1::1")
    )
    assert rate_limit_address("203.0.113.1") != rate_limit_address("203.0.113.2")
    assert rate_limit_address("testclient") == "testclient"
