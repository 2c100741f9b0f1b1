"""Who sees pages where keys are needed: sessions, their end, scopes, and tenants that see nothing of each other."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import select
from starlette.testclient import TestClient

from autosbp.service.auth.api_keys import ApiKey
from autosbp.service.auth.caller import SCOPES
from autosbp.service.db import Database
from autosbp.service.models import NO_TENANT, EndedSessionRow, KeyRow
from autosbp.service.services import audit, keys
from autosbp.service.settings import Settings
from autosbp.service.web.routers.sign_in import safe_redirect_path
from autosbp.service.web.sessions import COOKIE, LIFETIME_S, Session, Sessions
from tests.service import documents
from tests.service.conftest import running, state_of
from tests.service.web.conftest import FORM, HTML


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with running(Settings(data_dir=tmp_path_factory.mktemp("locked"), require_keys=True)) as client:
        client.headers.update(HTML)
        yield client


@pytest.fixture
def locked(service: TestClient) -> TestClient:
    """A service that needs keys, and a browser that has no session."""
    service.cookies.clear()
    return service


def made(client: TestClient, tenant: str = "lab", *scopes: str, lifetime: timedelta | None = None) -> keys.NewApiKey:
    state = state_of(client)
    return keys.create(state.database.of(tenant), "test", scopes or SCOPES, lifetime)


def sign_in(client: TestClient, key: str, following: str = "/") -> int:
    client.cookies.clear()
    answer = client.post("/sign-in", data={"key": key, "following": following}, headers=FORM, follow_redirects=False)
    return answer.status_code


def test_a_page_without_a_session_is_the_form_for_signing_in_with_401(locked: TestClient) -> None:
    answer = locked.get("/strategies/plan-1")
    assert answer.status_code == 401 and answer.headers["www-authenticate"].startswith("Bearer")
    assert 'name="key"' in answer.text and 'value="/strategies/plan-1"' in answer.text
    assert locked.get("/nothing").status_code == 404
    assert locked.get("/sign-in").status_code == 200


def test_a_key_opens_the_pages_of_its_tenant_and_signing_out_closes_them(locked: TestClient) -> None:
    key = made(locked).text
    answer = locked.post(
        "/sign-in", data={"key": key, "following": "/models?cursor="}, headers=FORM, follow_redirects=False
    )
    assert (answer.status_code, answer.headers["location"]) == (303, "/models?cursor=")
    cookie = answer.headers["set-cookie"]
    assert (
        "HttpOnly" in cookie
        and "SameSite=strict" in cookie
        and f"Max-Age={LIFETIME_S}" in cookie
        and "Path=/" in cookie
    )
    token = ApiKey.parse(key)
    assert token is not None and token.secret not in cookie
    page = locked.get("/")
    assert page.status_code == 200 and "tenant lab" in page.text and "Sign out" in page.text
    assert page.headers["vary"] == "cookie, hx-request" and page.headers["cache-control"] == "private, no-cache"
    assert locked.post("/sign-out", headers=FORM, follow_redirects=False).status_code == 303
    assert locked.get("/").status_code == 401


def test_who_has_copied_a_cookie_is_out_when_its_owner_signs_out(locked: TestClient) -> None:
    tenant = "copied"
    key = made(locked, tenant).text
    assert sign_in(locked, key) == 303
    copied = {"cookie": f"{COOKIE}={locked.cookies[COOKIE]}"}
    assert sign_in(locked, key) == 303  # another browser of the same person
    other = {"cookie": f"{COOKIE}={locked.cookies[COOKIE]}"}
    locked.cookies.clear()
    assert [locked.get("/", headers=each).status_code for each in (copied, other)] == [200, 200]
    for _ in range(2):
        assert locked.post("/sign-out", headers=FORM | copied, follow_redirects=False).status_code == 303
    answer = locked.get("/", headers=copied)
    assert answer.status_code == 401 and "the session has expired" in answer.text
    assert locked.get("/", headers=other).status_code == 200
    for made_up in ("x", "abcdefgh.1.aaaaaaaaaaaaaaaaaaaaaa." + "0" * 64):
        headers = FORM | {"cookie": f"{COOKIE}={made_up}"}
        assert locked.post("/sign-out", headers=headers, follow_redirects=False).status_code == 303
    with state_of(locked).database.read() as session:
        noted = session.scalars(select(EndedSessionRow.id).where(EndedSessionRow.tenant == tenant)).all()
    assert len(noted) == 1


def test_another_process_knows_within_a_second_that_a_session_was_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, database = [1000.0], Database(f"sqlite:///{tmp_path / 'test.db'}")
    database.upgrade()
    monkeypatch.setattr("autosbp.service.web.sessions.time.monotonic", lambda: now[0])
    one, two = (Sessions(tmp_path / "secret", database, lambda: now[0]) for _ in range(2))
    key = KeyRow(prefix="abcdefgh", salt="s", secret_hash="h", tenant="lab")
    session = one.begin(key)
    assert two.is_valid(session, key)
    one.end(session, key)
    assert not one.is_valid(session, key)
    now[0] += 1
    assert not two.is_valid(session, key)
    database.close()


def test_a_session_is_no_key_for_programs(locked: TestClient) -> None:
    assert sign_in(locked, made(locked).text) == 303
    assert locked.get("/v1/models", headers={"accept": "application/json"}).status_code == 401


@pytest.mark.parametrize("key", ["", "nonsense", "asbp_abcdefgh_" + "x" * 43])
def test_a_wrong_key_is_401_with_the_form(locked: TestClient, key: str) -> None:
    made(locked)
    answer = locked.post("/sign-in", data={"key": key}, headers=FORM)
    assert answer.status_code == 401 and "Invalid API key" in answer.text and "set-cookie" not in answer.headers


def test_a_session_ends_with_its_key(locked: TestClient) -> None:
    key = made(locked)
    assert sign_in(locked, key.text) == 303
    state = state_of(locked)
    keys.revoke(state.database.of("lab"), key.row.id)
    state.gate.keys_changed()
    answer = locked.get("/")
    assert answer.status_code == 401 and "revoked or has expired" in answer.text
    assert sign_in(locked, key.text) == 401


def test_a_session_ends_with_its_time_and_is_of_one_key_and_one_installation(tmp_path: Path) -> None:
    now, database = [1000.0], Database(f"sqlite:///{tmp_path / 'test.db'}")
    database.upgrade()
    sessions = Sessions(tmp_path / "secret", database, lambda: now[0])
    key = KeyRow(prefix="abcdefgh", salt="s", secret_hash="h", tenant="lab")
    session = sessions.begin(key)
    assert Session.parse(str(session)) == session
    assert sessions.is_valid(session, key)
    assert Sessions(tmp_path / "secret", database, lambda: now[0]).is_valid(session, key)
    assert not Sessions(tmp_path / "other", database, lambda: now[0]).is_valid(session, key)
    assert not sessions.is_valid(session, KeyRow(prefix="abcdefgh", salt="s", secret_hash="changed"))
    later = Session(session.prefix, session.end_s + 1, session.nonce, session.proof)
    assert not sessions.is_valid(later, key)
    now[0] += LIFETIME_S
    assert not sessions.is_valid(session, key)
    database.close()
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("cookie", ["x", "abcdefgh.1.aaaaaaaaaaaaaaaaaaaaaa." + "0" * 64, "é", "a" * 5000])
def test_a_made_up_session_is_refused(locked: TestClient, cookie: str) -> None:
    made(locked)
    answer = locked.get("/", headers={"cookie": f"{COOKIE}={cookie}".encode()})
    assert answer.status_code == 401


def test_another_tenants_things_are_404_and_lists_are_empty(locked: TestClient) -> None:
    bearer = {"authorization": f"Bearer {made(locked, 'one').text}"}
    calibration = locked.post("/v1/calibrations", json=documents.calibration("local:2"), headers=bearer).json()
    model = locked.post("/v1/models", json=documents.graph(), headers=bearer).json()
    paths = [
        f"/models/{model['id']}",
        f"/models/{model['id']}/needs",
        f"/clusters/{calibration['cluster_id']}",
        f"/calibrations/{calibration['id']}",
    ]
    assert sign_in(locked, made(locked, "one").text) == 303
    assert [locked.get(path).status_code for path in paths] == [200] * len(paths)
    assert sign_in(locked, made(locked, "two").text) == 303
    assert [locked.get(path).status_code for path in paths] == [404] * len(paths)
    for path in ("/models", "/clusters", "/strategies", "/jobs", "/plan"):
        assert model["id"] not in locked.get(path).text and calibration["cluster_id"] not in locked.get(path).text


def test_a_key_that_may_only_read_sees_no_forms_and_may_send_none(locked: TestClient) -> None:
    assert sign_in(locked, made(locked, "lab", "read").text) == 303
    assert locked.get("/").status_code == 200
    answer = locked.post("/plan", data={"source": "zoo", "zoo": "mlp-small", "preset": "local"}, headers=FORM)
    assert answer.status_code == 403 and "scope search is required" in answer.text
    assert sign_in(locked, made(locked, "lab", "trial").text) == 303
    assert locked.get("/").status_code == 403


def test_what_pages_change_is_in_the_audit_log(locked: TestClient) -> None:
    key = made(locked)
    assert sign_in(locked, key.text) == 303
    locked.post("/plan", data={"source": "zoo", "zoo": "none", "preset": "local"}, headers=FORM)
    bearer = {"authorization": f"Bearer {key.text}", "accept": "application/json"}
    entries = locked.get("/v1/audit", headers=bearer).json()["items"]
    assert [(each["method"], each["path"], each["status"], each["caller"]) for each in entries][:1] == [
        ("POST", "/plan", 422, key.row.id)
    ]


def test_signing_in_and_out_are_in_the_audit_log_and_strangers_are_for_operators(locked: TestClient) -> None:
    key = made(locked, "noted")
    state = state_of(locked)
    assert sign_in(locked, key.text) == 303
    assert locked.post("/sign-out", headers=FORM, follow_redirects=False).status_code == 303
    assert sign_in(locked, "wrong") == 401
    assert locked.post("/sign-in", data={"key": key.text}, headers={"origin": "http://evil"}).status_code == 403
    assert locked.get("/v1/models", headers={"accept": "application/json"}).status_code == 401
    own = audit.newest_entries(state.database, "noted", None, 100)
    assert [(one.method, one.path, one.status, one.caller) for one in own] == [
        ("POST", "/sign-out", 303, key.row.id),
        ("POST", "/sign-in", 303, key.row.id),
    ]
    strangers = audit.newest_entries(state.database, NO_TENANT, None, 3)
    assert [(one.method, one.path, one.status, one.caller) for one in strangers] == [
        ("GET", "/v1/models", 401, None),
        ("POST", "/sign-in", 403, None),
        ("POST", "/sign-in", 401, None),
    ]
    assert key.text not in "".join(str(vars(one)) for one in (*own, *strangers))


def test_foreign_calls_without_a_key_do_not_fill_the_audit_log(settings: Settings) -> None:
    limits = {"wrong_keys_burst": 3, "require_keys": True}
    with running(settings.model_copy(update=limits)) as client:
        for _ in range(10):
            answer = client.post("/sign-in", data={"key": "x"}, headers={"origin": "http://evil"})
            assert answer.status_code == 403
        assert 3 <= len(audit.newest_entries(state_of(client).database, NO_TENANT, 403, 100)) < 8
    with running(settings.model_copy(update={"wrong_keys_burst": 3})) as client:
        earlier = len(audit.newest_entries(state_of(client).database, NO_TENANT, 403, 100))
        for _ in range(10):
            assert client.get("/v1/models", headers={"host": "evil.example"}).status_code == 403
        assert 3 <= len(audit.newest_entries(state_of(client).database, NO_TENANT, 403, 100)) - earlier < 8


def test_signing_in_is_only_for_forms_of_these_pages(locked: TestClient) -> None:
    key = made(locked).text
    assert locked.post("/sign-in", data={"key": key}).status_code == 403
    assert locked.post("/sign-in", data={"key": key}, headers={"origin": "http://evil.example"}).status_code == 403
    assert locked.post("/sign-in", content=b"key=" + b"x" * 5000, headers=FORM).status_code == 413


@pytest.mark.parametrize(
    "following",
    ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)", "evil", "", "/a\nb"],
)
def test_signing_in_leads_nowhere_else(following: str) -> None:
    assert safe_redirect_path(following) == "/"
    assert safe_redirect_path("/strategies?searcher=exact") == "/strategies?searcher=exact"


def test_where_no_keys_are_needed_there_is_nothing_to_sign_in_to(shared: TestClient) -> None:
    answer = shared.get("/sign-in", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    assert "Sign out" not in shared.get("/").text
    assert shared.get("/", headers={"host": "evil.example"}).status_code == 403


def test_keys_are_not_tried_without_end(locked: TestClient) -> None:
    made(locked)
    tries = [sign_in(locked, "wrong") for _ in range(96)]
    assert tries[0] == 401 and 429 in tries
