"""DELETE of every resource: what depends on it is named or goes with it, and so do its files."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select
from starlette.testclient import TestClient

from autosbp.client import Client, ConflictError, NotFoundError, Version
from autosbp.errors import ServiceError
from autosbp.service.auth.caller import anonymous_caller
from autosbp.service.db import Database
from autosbp.service.models import (
    DEFAULT_TENANT,
    Base,
    CalibrationRow,
    ClusterRow,
    JobRow,
    ModelRow,
    RemovedFilesRow,
    SearchRow,
    StrategyRow,
    TrialRow,
)
from autosbp.service.problem_details import ProblemError
from autosbp.service.request_state import AppState, RequestCall
from autosbp.service.services import deleted_files, deletion, keys
from autosbp.service.services.job_kinds import kinds
from autosbp.service.settings import Settings
from tests.service import documents
from tests.service.conftest import running, state_of

pytestmark = pytest.mark.integration

RESOURCES = (
    *("models", "clusters", "calibrations", "searches", "strategies", "analyses", "trials", "artifacts", "jobs"),
)
Ids = dict[str, str]


@contextmanager
def measuring(settings: Settings) -> Iterator[TestClient]:
    """A service whose measurements leave files at once."""
    table = dict(kinds(settings))
    table["calibrate"] = replace(table["calibrate"], target="tests.service.tasks:leaving")
    table["trial"] = replace(table["trial"], target="tests.service.tasks:quick_trial")
    with running(settings, table) as client:
        yield client


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with measuring(Settings(data_dir=tmp_path_factory.mktemp("lab"))) as client:
        yield client


@pytest.fixture
def ids(lab: TestClient) -> Ids:
    """One of each resource, and no other."""
    for name in ("clusters", "models", "jobs"):
        for each in lab.get(f"/v1/{name}").json()["items"]:
            assert lab.delete(f"/v1/{name}/{each['id']}", params={"cascade": True}).status_code in (204, 404)
    assert set(left(lab).values()) == {0}
    return made(lab)


def made(lab: TestClient) -> Ids:
    """Make a measured calibration, a search with it, an analysis and a trial of what that found."""
    cluster = lab.post("/v1/clusters", json={"preset": "local:2"}).json()["id"]
    measured = documents.wait(lab, lab.post("/v1/calibrations:measure", json={"cluster_id": cluster}).json()["id"])
    model = lab.post("/v1/models", json=documents.graph()).json()["id"]
    asked = {"model_id": model, "cluster_id": cluster, "options": documents.OPTIONS}
    calibration = measured["result"]["calibration_id"]
    searched = documents.wait(lab, lab.post("/v1/searches", json={**asked, "calibration_id": calibration}).json()["id"])
    strategy = searched["result"]["strategy_id"]
    analysed = documents.wait(lab, lab.post(f"/v1/strategies/{strategy}/why", json={"op": "*"}).json()["id"])
    tried = documents.wait(lab, lab.post("/v1/trials", json={"strategy_id": strategy}).json()["id"])
    assert tried["state"] == searched["state"] == measured["state"] == "succeeded", (tried, searched, measured)
    return {
        "models": model,
        "clusters": cluster,
        "calibrations": calibration,
        "searches": searched["result"]["search_id"],
        "strategies": strategy,
        "analyses": analysed["resource"].rpartition("/")[2],
        "trials": tried["result"]["trial_id"],
        "artifacts": lab.get("/v1/artifacts").json()["items"][0]["id"],
        "jobs": measured["id"],
        "search job": searched["id"],
        "trial job": tried["id"],
    }


def left(client: TestClient) -> dict[str, int]:
    return {name: len(client.get(f"/v1/{name}").json()["items"]) for name in RESOURCES}


def test_dependents_are_named_and_nothing_is_deleted(lab: TestClient, ids: Ids) -> None:
    before = left(lab)
    named = {
        "models": {"searches": "searches", "strategies": "strategies"},
        "clusters": {"calibrations": "calibrations", "searches": "searches"},
        "calibrations": {"searches": "searches", "artifacts": "artifacts"},
        "strategies": {"searches": "searches", "analyses": "analyses", "trials": "trials"},
        "jobs": {"calibrations": "calibrations"},
    }
    for name, dependents in named.items():
        answer = lab.delete(f"/v1/{name}/{ids[name]}")
        problem = answer.json()
        assert (answer.status_code, problem["type"]) == (409, "urn:autosbp:problem:conflict"), name
        for kind, own in dependents.items():
            assert problem["dependents"][kind]["count"] >= 1, (name, kind)
            if kind != "artifacts":
                assert ids[own] in problem["dependents"][kind]["ids"] and ids[own] in problem["detail"]
    assert left(lab) == before


def test_what_nothing_depends_on_is_deleted_with_its_job(lab: TestClient, ids: Ids) -> None:
    for name, job in (("analyses", None), ("trials", "trial job"), ("searches", "search job"), ("strategies", None)):
        assert lab.delete(f"/v1/{name}/{ids[name]}").status_code == 204, name
        assert lab.get(f"/v1/{name}/{ids[name]}").status_code == 404
        assert job is None or lab.get(f"/v1/jobs/{ids[job]}").status_code == 404
    assert lab.delete(f"/v1/models/{ids['models']}").status_code == 204
    entries = lab.get("/v1/audit").json()["items"]
    assert ("DELETE", f"/v1/models/{ids['models']}", 204) in [(e["method"], e["path"], e["status"]) for e in entries]


def test_a_cascade_takes_everything_with_its_files(lab: TestClient, ids: Ids) -> None:
    data = state_of(lab).settings.data_dir.resolve()
    folders = [data / "artifacts" / ids["jobs"], data / "calibrations" / ids["jobs"], data / "trials" / ids["trials"]]
    folders[2].mkdir(parents=True, exist_ok=True)
    assert all(each.is_dir() for each in folders)
    assert lab.delete(f"/v1/clusters/{ids['clusters']}", params={"cascade": True}).status_code == 204
    assert left(lab) == {**dict.fromkeys(RESOURCES, 0), "models": 1}
    assert not any(each.exists() for each in folders)
    paths = [entry["path"] for entry in lab.get("/v1/audit").json()["items"]]
    assert f"/v1/clusters/{ids['clusters']}?cascade=true" in paths


def test_an_artifact_goes_with_its_file(lab: TestClient, ids: Ids) -> None:
    known = lab.get(f"/v1/artifacts/{ids['artifacts']}")
    file = state_of(lab).settings.data_dir / "artifacts" / known.json()["job_id"] / known.json()["name"]
    assert file.is_file()
    stale = lab.delete(f"/v1/artifacts/{ids['artifacts']}", headers={"if-match": '"other"'})
    assert (stale.status_code, file.is_file()) == (412, True)
    good = {"if-match": known.headers["etag"]}
    assert lab.delete(f"/v1/artifacts/{ids['artifacts']}", headers=good).status_code == 204
    assert not file.exists()


def test_every_resource_is_deleted_to_its_etag_alone(lab: TestClient, ids: Ids) -> None:
    for name in RESOURCES:
        stale = lab.delete(f"/v1/{name}/{ids[name]}", headers={"if-match": '"stale"'}, params={"cascade": True})
        assert stale.status_code == 412, name
    for name in ("artifacts", "analyses", "trials", "searches", "strategies", "jobs", "models", "clusters"):
        tag = lab.get(f"/v1/{name}/{ids[name]}").headers["etag"]
        gone = lab.delete(f"/v1/{name}/{ids[name]}", headers={"if-match": tag}, params={"cascade": True})
        assert gone.status_code == 204, (name, gone.text)
    assert set(left(lab).values()) == {0}


def test_a_cascade_needs_the_scopes_of_all_that_goes(settings: Settings) -> None:
    with measuring(settings) as lab:
        check_scopes(lab, made(lab))


def check_scopes(lab: TestClient, ids: Ids) -> None:
    database = state_of(lab).database.of(DEFAULT_TENANT)
    search = keys.create(database, "search", ["read", "search"]).text
    trial = keys.create(database, "trial", ["read", "search", "trial"]).text
    state_of(lab).gate.keys_changed()
    path = f"/v1/strategies/{ids['strategies']}?cascade=true"
    refused = lab.delete(path, headers={"authorization": f"Bearer {search}"})
    assert (refused.status_code, refused.json()["scope"]) == (403, ["trial"])
    of_job = lab.delete(f"/v1/jobs/{ids['jobs']}?cascade=true", headers={"authorization": f"Bearer {trial}"})
    assert (of_job.status_code, of_job.json()["scope"]) == (403, ["calibrate"])
    assert lab.delete(path, headers={"authorization": f"Bearer {trial}"}).status_code == 204


def test_resources_in_use_by_a_job_are_not_deleted(settings: Settings, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("TEST_GATE", str(tmp_path / "gate"))
    table = dict(kinds(settings))
    table["search"] = replace(table["search"], target="tests.service.tasks:held_search")
    with running(settings, table) as client:
        model = client.post("/v1/models", json=documents.graph()).json()["id"]
        cluster = client.post("/v1/clusters", json={"preset": documents.CLUSTER}).json()["id"]
        asked = {"model_id": model, "cluster_id": cluster, "options": documents.OPTIONS}
        job = client.post("/v1/searches", json=asked).json()
        paths = [f"/v1/models/{model}", f"/v1/clusters/{cluster}", job["resource"], f"/v1/jobs/{job['id']}"]
        for path in paths:
            answer = client.delete(path, params={"cascade": True})
            assert (answer.status_code, job["id"] in answer.json()["detail"]) == (409, True), path
            assert "cancel" in answer.json()["detail"]
        client.post(f"/v1/jobs/{job['id']}:cancel")
        documents.wait(client, job["id"])
        for path in (paths[2], paths[0], paths[1]):
            assert client.delete(path).status_code == 204, path


def test_the_client_deletes(lab: TestClient, ids: Ids) -> None:
    def passed(request: httpx.Request) -> httpx.Response:
        answer = lab.request(request.method, str(request.url), headers=dict(request.headers))
        return httpx.Response(answer.status_code, content=answer.content)

    with Client("http://localhost", transport=httpx.MockTransport(passed)) as client:
        with pytest.raises(ConflictError, match=ids["trials"]):
            client.delete_strategy(ids["strategies"])
        with pytest.raises(ServiceError, match="412"):
            client.delete_strategy(ids["strategies"], cascade=True, version=Version('"stale"'))
        client.delete_trial(ids["trials"])
        client.delete_analysis(ids["analyses"])
        client.delete_search(ids["searches"])
        client.delete_strategy(ids["strategies"])
        client.delete_artifact(ids["artifacts"])
        client.delete_calibration(ids["calibrations"], cascade=True)
        client.delete_cluster(ids["clusters"])
        client.delete_model(ids["models"])
        for name, gone in (("trials", client.delete_trial), ("jobs", client.delete_job)):
            with pytest.raises(NotFoundError):
                gone(ids[name])


def state_on(database: Database, folder: Path) -> AppState:
    """As much of a service as deleting asks for."""
    settings = Settings(data_dir=folder)
    shared: Any = (None,) * 4
    return AppState(settings, database, *shared).of(RequestCall(anonymous_caller(""), "", ""))


def planted(database: Database, name: str, tenant: str = DEFAULT_TENANT) -> None:
    """A model with a strategy and a trial of it, whose job has ended."""
    with database.of(tenant).write() as session:
        session.add(ModelRow(id=f"mod-{name}", name=name, source="zoo", graph_hash="g", summary={}, document={}))
        session.add(ClusterRow(id=f"clu-{name}", name=name, cluster_hash="h", num_devices=1, document={}))
        session.add(JobRow(id=f"job-{name}", kind="trial", payload={}, state="succeeded"))
        session.flush()
        costs = {"step_time_s": 1.0, "comm_bytes_per_device": 0, "memory_bytes_per_device": 0, "searcher": "exact"}
        of = {"model_id": f"mod-{name}", "cluster_id": f"clu-{name}"}
        session.add(StrategyRow(id=f"plan-{name}", plan={}, **of, **costs))
        session.flush()
        trial = {"strategy_id": f"plan-{name}", "job_id": f"job-{name}", "options": {}, "predicted": {}}
        session.add(TrialRow(id=f"tri-{name}", **trial))


def rows(database: Database, kind: type[Base]) -> list[str]:
    with database.read() as session:
        return list(session.scalars(select(kind.id)))


def test_files_that_a_death_leaves_behind_are_removed_by_maintenance(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted(database, "one")
    state = state_on(database, tmp_path)
    own = [tmp_path / "trials" / "tri-one", tmp_path / "jobs" / "job-one", tmp_path / "launches" / "job-one-1"]
    for folder in (*own, tmp_path / "trials" / "tri-other"):
        (folder / "deep").mkdir(parents=True)
    with monkeypatch.context() as patch:
        patch.setattr(deleted_files, "delete_files", lambda *_: None)  # as a kill after the commit
        deletion.remove(state, ModelRow, "mod-one", "model", lambda _: None, cascade=True)
    assert rows(database, TrialRow) == [] and all(folder.is_dir() for folder in own)
    deleted_files.sweep(state.settings, database)
    assert not any(folder.exists() for folder in own) and (tmp_path / "trials" / "tri-other").is_dir()
    assert rows(database, RemovedFilesRow) == []


def test_nothing_is_left_that_refers_to_what_is_deleted_beside_posts(database: Database, tmp_path: Path) -> None:
    planted(database, "busy")
    state, tenant = state_on(database, tmp_path), database.of(DEFAULT_TENANT)

    def post(number: int) -> bool:
        try:
            with tenant.write() as session:
                of = {"model_id": "mod-busy", "cluster_id": "clu-busy", "job_id": "job-busy"}
                session.add(SearchRow(id=f"sea-{number}", options={}, **of))
        except Exception:  # its model is gone
            return False
        return True

    def delete(_: int) -> bool:
        try:
            deletion.remove(state, ModelRow, "mod-busy", "model", lambda _: None, cascade=True)
        except ProblemError as error:
            assert error.status in (404, 409)
            return False
        return True

    with ThreadPoolExecutor(6) as pool:
        posted = pool.map(post, range(60))
        deleted = list(pool.map(delete, range(3)))
        list(posted)
    if not any(deleted):
        assert delete(0)
    assert rows(database, ModelRow) == rows(database, SearchRow) == rows(database, TrialRow) == []
    assert rows(database, ClusterRow) == ["clu-busy"] and rows(database, CalibrationRow) == []


def test_another_tenants_equal_rows_stay(database: Database, tmp_path: Path) -> None:
    planted(database, "one")
    with database.of("other").write() as session:
        session.add(ModelRow(id="mod-one", name="one", source="zoo", graph_hash="g", summary={}, document={}))
    deletion.remove(state_on(database, tmp_path), ModelRow, "mod-one", "model", lambda _: None, cascade=True)
    with database.read() as session:
        assert list(session.scalars(select(ModelRow.tenant))) == ["other"]
