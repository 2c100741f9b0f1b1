"""Every route of the interface and of the pages against everybody who might call it: strangers, each scope alone, and
another tenant. The routes are the application's own: one that is new fails here until it is known who may call it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from starlette.testclient import TestClient

from autosbp.service.auth.api_keys import ApiKey
from autosbp.service.auth.caller import SCOPES
from autosbp.service.models import DEFAULT_TENANT, ArtifactRow, KeyRow
from autosbp.service.services import keys
from autosbp.service.settings import Settings
from autosbp.service.web.page_route import PageRoute
from autosbp.service.web.sessions import COOKIE, LIFETIME_S, Session, Sessions
from tests.service import documents
from tests.service.conftest import running, state_of
from tests.service.endpoints import Endpoint, endpoints
from tests.service.test_openapi import operations

pytestmark = pytest.mark.integration

ANYBODY = {
    "GET /healthz",
    "GET /readyz",
    "GET /openapi.json",
    "HEAD /openapi.json",
    "GET /sign-in",
    "GET /docs",
    "GET /docs/{name}",
    "POST /sign-in",
    "POST /sign-out",
    "GET /static/{release}/{name}",
}
"""What needs no key."""
WRITES = {
    "models": {"search"},
    "clusters": {"search"},
    "searches": {"search"},
    "strategies": {"search"},
    "plan": {"search"},
    "calibrations": {"calibrate"},
    "trials": {"trial"},
    "analyses": {"search"},
    "artifacts": {"trial", "calibrate"},
    "jobs": {"search", "trial", "calibrate"},
    "keys": {"admin"},
}
"""The scopes of which one is needed for POST and DELETE, by the first word of the path."""
EXCEPTIONS = {
    "POST /clusters/{cluster_id}/calibrate": {"calibrate"},
    "GET /v1/keys": {"admin"},
    "GET /v1/audit": {"admin"},
    "GET /metrics": {"admin"},
}
NAMES = {
    "model_id": "mod-1",
    "cluster_id": "clu-1",
    "calibration_id": "cal-1",
    "search_id": "sea-1",
    "strategy_id": "plan-1",
    "other_id": "plan-2",
    "analysis_id": "ana-1",
    "trial_id": "tri-1",
    "artifact_id": "art-1",
    "job_id": "job-1",
    "capture_id": "job-2",
    "key_id": "key-1",
    "target": "dtensor",
    "group": "0",
}
FORM = {"origin": "http://localhost", "content-type": "application/x-www-form-urlencoded"}
OWN_PAGES = {"/", "/running", "/compare", "/plan", "/models", "/clusters", "/strategies", "/trials", "/jobs"}
Headers = dict[str, str]


def needed(one: Endpoint) -> set[str]:
    """The scopes of which a caller needs one."""
    if str(one) in EXCEPTIONS:
        return EXCEPTIONS[str(one)]
    return {"read"} if one.method == "GET" else WRITES[re.split("[/:]", one.path.removeprefix("/v1/").strip("/"))[0]]


def key_of(client: TestClient, tenant: str, *scopes: str, lifetime: timedelta | None = None) -> keys.NewApiKey:
    return keys.create(state_of(client).database.of(tenant), "test", scopes or SCOPES, lifetime)


def bearer(key: keys.NewApiKey) -> Headers:
    return {"authorization": f"Bearer {key.text}"}


def cookie(client: TestClient, key: KeyRow) -> Headers:
    return {"cookie": f"{COOKIE}={sessions_of(client).begin(key)}"}


def sessions_of(client: TestClient) -> Sessions:
    found: Sessions = client.app.state.sessions  # type: ignore[attr-defined]
    return found


def call(
    client: TestClient,
    one: Endpoint,
    names: dict[str, str],
    headers: Headers,
    body: Any = None,
    query: dict[str, str] | None = None,
) -> Any:
    """The answer to a request that is well-formed but for what ``names`` and ``body`` leave out."""
    url = one.path.format(**names)
    if isinstance(one.route, PageRoute):
        return client.request(
            one.method, url, headers={"accept": "text/html", **(FORM if one.method == "POST" else {}), **headers}
        )
    sent = {"json": body or {}} if one.method == "POST" else {}
    return client.request(one.method, url, headers=headers, params=query, **sent)


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A service that needs keys, and has no patience with nobody."""
    folder = tmp_path_factory.mktemp("matrix")
    with running(Settings(data_dir=folder, require_keys=True, rate_limit_burst=1e5, wrong_keys_burst=1e5)) as client:
        client.follow_redirects = False
        yield client


@pytest.fixture(scope="module")
def guarded(locked: TestClient) -> list[Endpoint]:
    """Every route that is not for anybody."""
    app: Any = locked.app
    return [one for one in endpoints(app) if str(one) not in ANYBODY]


def test_every_route_is_described_or_a_page_or_for_anybody(locked: TestClient) -> None:
    app: Any = locked.app
    described = {f"{method.upper()} {path}" for path, method, _ in operations(locked.get("/openapi.json").json())}
    found = {str(one): one for one in endpoints(app)}
    assert found.keys() >= ANYBODY
    assert described <= found.keys()
    undescribed = [str(one) for one in found.values() if str(one) not in described | ANYBODY]
    assert undescribed and all(isinstance(found[name].route, PageRoute) for name in undescribed), undescribed
    assert found.keys() >= EXCEPTIONS.keys()


def test_public_routes_reveal_nothing_about_tenants(locked: TestClient) -> None:
    locked.post(
        "/v1/models", json={**documents.graph(), "name": "a-secret-name"}, headers=bearer(key_of(locked, "shy"))
    )
    for name in sorted(ANYBODY):
        method, path = name.split()
        answer = locked.request(method, path.format(release="x", name="y"))
        assert answer.status_code in (200, 303, 403, 404), name
        assert "a-secret-name" not in answer.text


def test_the_interface_is_closed_to_strangers_and_to_other_scopes(locked: TestClient, guarded: list[Endpoint]) -> None:
    by_scope = {scope: bearer(key_of(locked, "matrix", scope)) for scope in SCOPES}
    known = ApiKey.parse(by_scope["read"]["authorization"].removeprefix("Bearer "))
    assert known is not None
    revoked = key_of(locked, "matrix")
    keys.revoke(state_of(locked).database.of("matrix"), revoked.row.id)
    strangers = {
        "no key": {},
        "no bearer": {"authorization": by_scope["read"]["authorization"].replace("Bearer", "Basic")},
        "malformed": {"authorization": "Bearer nonsense"},
        "unknown": {"authorization": f"Bearer {ApiKey.new()}"},
        "wrong secret": {"authorization": f"Bearer {ApiKey(known.prefix, ApiKey.new().secret)}"},
        "expired": bearer(key_of(locked, "matrix", lifetime=timedelta(seconds=-1))),
        "revoked": bearer(revoked),
        "a session": cookie(locked, key_of(locked, "matrix").row),
    }
    routes = [one for one in guarded if not isinstance(one.route, PageRoute)]
    assert len(routes) >= 36
    for one in routes:
        for name, headers in strangers.items():
            answer = call(locked, one, NAMES, headers)
            assert answer.status_code == 401, (str(one), name)
            assert answer.headers["www-authenticate"].startswith("Bearer"), (str(one), name)
            assert answer.headers["content-type"] == "application/problem+json"
        for scope, headers in by_scope.items():
            answer = call(locked, one, NAMES, headers)
            assert (answer.status_code == 403) == (scope not in needed(one)), (str(one), scope, answer.text)
            assert answer.status_code != 401 and answer.status_code < 500, (str(one), scope)


def test_pages_are_closed_to_strangers_and_to_other_scopes(locked: TestClient, guarded: list[Endpoint]) -> None:
    by_scope = {scope: cookie(locked, key_of(locked, "matrix", scope).row) for scope in SCOPES}
    good, revoked = key_of(locked, "matrix"), key_of(locked, "matrix")
    keys.revoke(state_of(locked).database.of("matrix"), revoked.row.id)
    begun = sessions_of(locked).begin(good.row)
    made_up = Session(begun.prefix, begun.end_s, begun.nonce, "0" * 64)
    longer = Session(begun.prefix, begun.end_s + LIFETIME_S, begun.nonce, begun.proof)
    state = state_of(locked)
    stale = Sessions(state.settings.data_dir.resolve() / "session.secret", state.database, lambda: 0.0).begin(good.row)
    signed_out = sessions_of(locked).begin(good.row)
    sessions_of(locked).end(signed_out, good.row)
    strangers = {
        "no session": {},
        "a key": bearer(good),
        "malformed": {"cookie": f"{COOKIE}=nonsense"},
        "unknown": cookie(locked, KeyRow(prefix="aaaaaaaa", salt="s", secret_hash="h")),
        "made up": {"cookie": f"{COOKIE}={made_up}"},
        "made longer": {"cookie": f"{COOKIE}={longer}"},
        "ended": {"cookie": f"{COOKIE}={stale}"},
        "signed out": {"cookie": f"{COOKIE}={signed_out}"},
        "expired key": cookie(locked, key_of(locked, "matrix", lifetime=timedelta(seconds=-1)).row),
        "revoked key": cookie(locked, revoked.row),
    }
    pages = [one for one in guarded if isinstance(one.route, PageRoute)]
    assert len(pages) >= 35
    for one in pages:
        for name, headers in strangers.items():
            answer = call(locked, one, NAMES, headers)
            assert answer.status_code == 401, (str(one), name)
            assert 'name="key"' in answer.text and answer.headers["www-authenticate"].startswith("Bearer")
        for scope, headers in by_scope.items():
            answer = call(locked, one, NAMES, headers)
            assert (answer.status_code == 403) == (scope not in needed(one)), (str(one), scope, answer.text)
            assert answer.status_code != 401 and answer.status_code < 500, (str(one), scope)


@dataclass(frozen=True)
class Owned:
    """What a tenant has, by the names that paths give it; the body of its search, and the search's job."""

    headers: Headers
    key: keys.NewApiKey
    names: dict[str, str]
    search: dict[str, Any]


def artifact_of(client: TestClient, job_id: str) -> str:
    """A file of a job of ``mine``, kept without the work that leaves one."""
    state = state_of(client)
    kept = state.settings.data_dir / "artifacts" / job_id / "ranks.log"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"a secret of the ranks")
    with state.database.of("mine").write() as session:
        session.add(ArtifactRow(id="art-mine", job_id=job_id, name=kept.name, num_bytes=21, sha256="0" * 64))
    return "art-mine"


@pytest.fixture(scope="module")
def owned(locked: TestClient) -> Owned:
    key = key_of(locked, "mine")
    mine = bearer(key)
    calibration = locked.post("/v1/calibrations", json=documents.calibration(), headers=mine).json()
    model = locked.post("/v1/models", json=documents.graph(), headers=mine).json()
    asked = {"model_id": model["id"], "cluster_id": calibration["cluster_id"], "options": documents.OPTIONS}
    job = locked.post("/v1/searches", json=asked, headers={**mine, "idempotency-key": "k"}).json()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(locked.headers, "authorization", mine["authorization"])
        done = documents.wait(locked, job["id"])
    assert done["state"] == "succeeded", done
    strategy = done["result"]["strategy_id"]
    analysis = locked.post(f"/v1/strategies/{strategy}/why", json={"op": "*"}, headers=mine).json()
    trial = locked.post("/v1/trials", json={"strategy_id": strategy}, headers=mine).json()
    locked.post(f"/v1/jobs/{trial['id']}:cancel", headers=mine)
    capture = locked.post("/v1/models:capture", json={"hf_config": {"model_type": "abacus"}}, headers=mine).json()
    names = {
        **NAMES,
        "model_id": model["id"],
        "cluster_id": calibration["cluster_id"],
        "calibration_id": calibration["id"],
        "search_id": done["result"]["search_id"],
        "strategy_id": strategy,
        "other_id": strategy,
        "analysis_id": analysis["resource"].rpartition("/")[2],
        "trial_id": trial["resource"].rpartition("/")[2],
        "artifact_id": artifact_of(locked, job["id"]),
        "job_id": job["id"],
        "capture_id": capture["id"],
        "key_id": key.row.id,
    }
    return Owned(mine, key, names, asked)


def test_the_interface_shows_a_tenant_nothing_of_another(
    locked: TestClient, guarded: list[Endpoint], owned: Owned
) -> None:
    mine, theirs = owned.headers, bearer(key_of(locked, "theirs"))
    for one in guarded:
        if isinstance(one.route, PageRoute):
            continue
        if "{" in one.path:
            body = {"/why": {"op": "x"}}.get(one.path[one.path.rfind("}") + 1 :], {})
            answer = call(locked, one, owned.names, theirs, body)
            assert answer.status_code == 404, (str(one), answer.text)
        elif one.method == "GET" and one.path not in ("/v1/keys", "/v1/audit", "/metrics"):
            assert locked.get(one.path, headers=mine).json()["items"], one.path
            assert locked.get(one.path, headers=theirs).json()["items"] == [], one.path
    for listed in ("/v1/keys", "/v1/audit"):
        own, others = (
            {item["id"] for item in locked.get(listed, headers=who).json()["items"]} for who in (mine, theirs)
        )
        assert own and not own & others
    strangers = [
        locked.get("/v1/audit", params={"strangers": True}, headers=bearer(key_of(locked, tenant, *scopes))).status_code
        for tenant, scopes in (
            ("theirs", ()),
            (DEFAULT_TENANT, ("read", "search", "trial", "calibrate")),
            (DEFAULT_TENANT, ()),
        )
    ]
    assert strangers == [403, 403, 200]
    seen, total = (
        locked.get("/metrics", headers=headers).text for headers in (theirs, bearer(key_of(locked, DEFAULT_TENANT)))
    )
    assert "autosbp_jobs{" not in seen and "http" not in seen and "autosbp_event_streams 0.0" in seen
    assert "autosbp_jobs{kind=" in locked.get("/metrics", headers=mine).text
    assert "autosbp_http_requests_total" in total and "autosbp_jobs{" in total and "mine" not in total


def test_ids_of_other_tenants_in_a_body_are_not_found(locked: TestClient, owned: Owned) -> None:
    theirs = bearer(key_of(locked, "strangers"))
    names = owned.names
    bodies: list[tuple[str, str, dict[str, Any]]] = [
        ("/v1/searches", "model_id", owned.search),
        ("/v1/trials", "strategy_id", {"strategy_id": names["strategy_id"]}),
        ("/v1/calibrations:measure", "cluster_id", {"cluster_id": names["cluster_id"]}),
    ]
    for path, field, body in bodies:
        refused = locked.post(path, json=body, headers={**theirs, "idempotency-key": "k"})
        assert (refused.status_code, refused.json()["field"]) == (422, field), "no replay of another tenant's answer"
    assert locked.post("/v1/models", json=documents.graph(), headers=theirs).status_code == 201, "not 'already stored'"
    assert locked.post("/v1/clusters", json={"preset": documents.CLUSTER}, headers=theirs).status_code == 201
    calibrating = {"cluster_id": names["cluster_id"], "model_ids": [names["model_id"]]}
    measured = locked.post("/v1/calibrations:measure", json=calibrating, headers=theirs)
    locked.post(f"/v1/jobs/{measured.json()['id']}:cancel", headers=theirs)
    assert measured.status_code == 202, "its own cluster and model have the same ids"
    with_theirs = {**owned.search, "calibration_id": names["calibration_id"]}
    refused = locked.post("/v1/searches", json=with_theirs, headers=theirs)
    assert (refused.status_code, refused.json()["field"]) == (422, "calibration_id")
    begun = locked.post("/v1/searches", json={**owned.search, "start_id": names["strategy_id"]}, headers=theirs)
    assert (begun.status_code, begun.json()["field"]) == (422, "start_id")
    again = locked.post("/v1/searches", json=owned.search, headers=theirs)
    assert again.status_code == 202 and again.json()["id"] != names["job_id"], "no answer from another tenant's store"
    locked.post(f"/v1/jobs/{again.json()['id']}:cancel", headers=theirs)
    assert locked.get(f"/v1/models/{names['model_id']}", headers=owned.headers).status_code == 200


def test_pages_show_a_tenant_nothing_of_another(locked: TestClient, guarded: list[Endpoint], owned: Owned) -> None:
    mine, theirs = cookie(locked, owned.key.row), cookie(locked, key_of(locked, "others").row)
    ids = [value for name, value in owned.names.items() if name not in ("target", "group", "key_id")]
    for one in guarded:
        if not isinstance(one.route, PageRoute):
            continue
        if "{" in one.path:
            answer = call(locked, one, owned.names, theirs)
            assert answer.status_code in (404, 422) if one.method == "POST" else answer.status_code == 404, str(one)
            if one.method == "GET":
                assert call(locked, one, owned.names, mine).status_code == 200, str(one)
        elif one.method == "GET":
            assert one.path in OWN_PAGES, "a new page: does it show ids?"
            url = f"{one.path}?id={owned.names['strategy_id']}" if one.path == "/compare" else one.path
            shown, hidden = (locked.get(url, headers={"accept": "text/html", **who}) for who in (mine, theirs))
            assert shown.status_code == 200, url
            assert hidden.status_code == (404 if one.path == "/compare" else 200), url
            assert one.path == "/running" or any(value in shown.text for value in ids), url
            assert not any(f"/{value}" in hidden.text for value in ids), url
