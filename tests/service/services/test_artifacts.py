"""/v1/artifacts: what trials and calibrations leave, in a folder and in an object store."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from moto.server import ThreadedMotoServer
from sqlalchemy import update
from starlette.testclient import TestClient

from autosbp.errors import InputError
from autosbp.service.artifact_storage import ArtifactStorage
from autosbp.service.models import ArtifactRow, now
from autosbp.service.services import artifacts, retention
from autosbp.service.services.erasure import erase
from autosbp.service.services.job_kinds import kinds
from autosbp.service.settings import Settings
from autosbp.utils.json_io import canonical
from tests.service import documents
from tests.service.conftest import running, state_of

pytestmark = pytest.mark.integration

TASK = "tests.service.tasks:leaving"
WANTED = {"ranks.log": b"a rank says something\n", "ranks.node1.log": b"", "results.jsonl": b"{}\n"}


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """A path of a server that speaks S3."""
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    named = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in named.items():
            patch.setenv(name, value)
        ArtifactStorage("s3://lab")._files.mkdir("lab")
        yield "s3://lab/autosbp"
    server.stop()


@pytest.fixture(params=["folder", "object store"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "folder":
        return str(tmp_path / "kept")
    found: str = request.getfixturevalue("bucket")
    return found


def started(settings: Settings) -> Any:
    """A service whose calibrations leave files; the ``point_s`` of one says how it ends."""
    table = dict(kinds(settings))
    table["calibrate"] = replace(table["calibrate"], target=TASK)
    return running(settings, table)


def calibrated(client: TestClient, point_s: float) -> dict[str, Any]:
    cluster = client.post("/v1/clusters", json={"preset": "local:2"}).json()["id"]
    job = client.post("/v1/calibrations:measure", json={"cluster_id": cluster, "point_s": point_s}).json()
    return documents.wait(client, job["id"])


def listed(client: TestClient, **asked: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = client.get("/v1/artifacts", params=asked).json()["items"]
    return items


@pytest.mark.some(2)
@pytest.mark.parametrize(("point_s", "state"), [(0.1, "succeeded"), (0.2, "failed")])
def test_what_a_job_leaves_is_kept_however_it_ends(tmp_path: Path, place: str, point_s: float, state: str) -> None:
    with started(Settings(data_dir=tmp_path / "data", artifacts=place)) as client:
        job = calibrated(client, point_s)
        assert job["state"] == state, job
        found = listed(client, job_id=job["id"])
        assert {each["name"]: each["num_bytes"] for each in found} == {name: len(text) for name, text in WANTED.items()}
        for each in found:
            one = client.get(f"/v1/artifacts/{each['id']}")
            assert one.json() == each and each["sha256"] == hashlib.sha256(WANTED[each["name"]]).hexdigest()
            content = client.get(f"/v1/artifacts/{each['id']}/content")
            assert (content.status_code, content.content) == (200, WANTED[each["name"]])
            assert content.headers["content-type"] == "application/octet-stream"
            assert content.headers["content-disposition"] == f'attachment; filename="{each["name"]}"'
            for path in ("", "/content"):
                known = {"if-none-match": content.headers["etag"]}
                again = client.get(f"/v1/artifacts/{each['id']}{path}", headers=known)
                assert (again.status_code, again.content) == (304, b"")
        assert [each["name"] for each in listed(client, name="ranks.log")] == ["ranks.log"]
        assert listed(client, job_id="job-none") == []


def test_artifacts_expire_with_age(tmp_path: Path, place: str) -> None:
    settings = Settings(data_dir=tmp_path / "data", artifacts=place, files_days=30)
    with started(settings) as client:
        old, young = calibrated(client, 0.1)["id"], calibrated(client, 0.3)["id"]
        database = state_of(client).database
        with database.write() as session:
            moved = update(ArtifactRow).where(ArtifactRow.job_id == old)
            session.execute(moved.values(created_at=now() - timedelta(days=31)))
        gone = listed(client, job_id=old)
        artifacts.delete_expired(database, ArtifactStorage(place), settings.files_days)
        assert listed(client, job_id=old) == [] and len(listed(client, job_id=young)) == len(WANTED)
        assert client.get(f"/v1/artifacts/{gone[0]['id']}/content").status_code == 404
        for name in WANTED:
            with pytest.raises(FileNotFoundError):
                ArtifactStorage(place).open(f"{old}/{name}")
            with ArtifactStorage(place).open(f"{young}/{name}") as file:
                assert file.read() == WANTED[name]


def test_artifacts_are_deleted_with_their_job_or_tenant(tmp_path: Path, place: str) -> None:
    settings = Settings(data_dir=tmp_path / "data", artifacts=place)
    with started(settings) as client:
        first, second = calibrated(client, 0.1)["id"], calibrated(client, 0.3)["id"]
        assert client.delete(f"/v1/jobs/{first}").status_code == 409
        assert client.delete(f"/v1/jobs/{first}", params={"cascade": True}).status_code == 204
        for name in WANTED:
            with pytest.raises(FileNotFoundError):
                ArtifactStorage(place).open(f"{first}/{name}")
            ArtifactStorage(place).open(f"{second}/{name}").close()
        assert {each["job_id"] for each in listed(client)} == {second}
        assert erase(settings, state_of(client).database, "default").files_left == 0
        for name in WANTED:
            with pytest.raises(FileNotFoundError):
                ArtifactStorage(place).open(f"{second}/{name}")


@pytest.mark.parametrize(
    "instead", [lambda _place: None, Path.touch, Path.mkdir], ids=["nothing", "a file", "a folder"]
)
def test_what_a_job_leaves_while_the_store_is_gone_is_kept_when_it_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, instead: Callable[[Path], None]
) -> None:
    monkeypatch.setattr("autosbp.service.maintenance._RETRY_FILES_EVERY_S", 0.2)
    place, settings = tmp_path / "kept", Settings(data_dir=tmp_path / "data", artifacts=str(tmp_path / "kept"))
    with started(settings) as client:
        kept = listed(client, job_id=calibrated(client, 0.1)["id"])
        keep = artifacts.save_files

        def lose_and_keep(*arguments: Any) -> Any:  # a disk that is unmounted as a job ends
            place.rename(tmp_path / "away")
            instead(place)
            return keep(*arguments)

    monkeypatch.setattr(artifacts, "save_files", lose_and_keep)
    with started(settings) as client:
        job = calibrated(client, 0.3)
        assert (job["state"], listed(client, job_id=job["id"])) == ("succeeded", [])
        assert f"ranks.log of job {job['id']} is not stored yet" in caplog.text
        for answer in (
            client.get(f"/v1/artifacts/{kept[0]['id']}/content"),
            client.post("/v1/clusters", json={"preset": "local:3"}),
        ):
            assert (answer.status_code, answer.json()["type"]) == (503, "urn:autosbp:problem:storage-unavailable")
            assert answer.headers["retry-after"]
        state = state_of(client)
        retention.sweep(settings.model_copy(update={"files_days": 1e-9, "files_bytes": 0}), state.database, None)
        if place.exists():
            assert not place.is_dir() or list(place.iterdir()) == [], "hidden when the disk is back"
            place.rmdir() if place.is_dir() else place.unlink()
        (tmp_path / "away").rename(place)
        documents.wait_until(lambda: not artifacts.unsaved_job_ids(settings))
        assert {each["name"] for each in listed(client, job_id=job["id"])} == set(WANTED)
        for each in (*kept, *listed(client, job_id=job["id"])):
            content = client.get(f"/v1/artifacts/{each['id']}/content")
            assert (content.status_code, content.content) == (200, WANTED[each["name"]])
        assert client.post("/v1/clusters", json={"preset": "local:3"}).status_code == 201


def test_a_log_that_is_longer_than_is_kept_loses_its_middle_and_nothing_is_owed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings(data_dir=tmp_path / "data", job_files_bytes=2**16)
    with started(settings) as client:
        job = calibrated(client, 0.4)["id"]
        found = {each["name"]: each for each in listed(client, job_id=job)}
        assert sum(each["num_bytes"] for each in found.values()) <= 2**16
        assert found.keys() == {"results.jsonl", "ranks.log"}, "what was found goes before logs"
        log = client.get(f"/v1/artifacts/{found['ranks.log']['id']}/content").text
        assert log.startswith("first\n") and log.endswith("last\n") and "bytes omitted]" in log
        assert hashlib.sha256(log.encode()).hexdigest() == found["ranks.log"]["sha256"]
    assert "ranks.node1.log" in caplog.text and artifacts.unsaved_job_ids(settings) == []


def test_what_is_kept_takes_no_second_place_on_the_disk(tmp_path: Path) -> None:
    with started(Settings(data_dir=tmp_path / "data")) as client:
        job = calibrated(client, 0.1)["id"]
        for name in WANTED:
            kept, left = (tmp_path / "data" / folder / job / name for folder in ("artifacts", "calibrations"))
            assert kept.samefile(left), name


def test_a_tenant_whose_quota_of_files_is_full_measures_no_more(tmp_path: Path) -> None:
    with started(Settings(data_dir=tmp_path / "data", files_bytes_of_tenant=20)) as client:
        first = calibrated(client, 0.1)
        assert first["state"] == "succeeded", first
        kept = listed(client)
        assert 0 < sum(each["num_bytes"] for each in kept) <= 20
        state = state_of(client)
        with state.database.of("default").write() as session:
            session.execute(update(ArtifactRow).where(ArtifactRow.id == kept[0]["id"]).values(num_bytes=20))
        cluster = client.post("/v1/clusters", json={"preset": "local:2"}).json()["id"]
        full = client.post("/v1/calibrations:measure", json={"cluster_id": cluster})
        assert (full.status_code, full.json()["quota"], full.json()["limit"]) == (507, "files", 20)
        assert "AUTOSBP_FILES_BYTES_OF_TENANT" in full.json()["detail"]
        for each in kept:
            assert client.delete(f"/v1/artifacts/{each['id']}").status_code == 204
        again = client.post("/v1/calibrations:measure", json={"cluster_id": cluster, "point_s": 0.1})
        assert documents.wait(client, again.json()["id"])["state"] == "succeeded"


def test_a_tenants_documents_have_a_quota_which_is_named(tmp_path: Path) -> None:
    size = len(canonical(documents.graph()))
    most = 2 * size + size // 2
    with started(Settings(data_dir=tmp_path / "data", documents_bytes_of_tenant=most)) as client:

        def post(name: str) -> Any:
            return client.post("/v1/models", json={**documents.graph(), "name": name})

        first = post("first")
        assert [first.status_code, post("second").status_code] == [201, 201]
        full = post("third")
        assert (full.status_code, full.json()["type"]) == (507, "urn:autosbp:problem:quota-full")
        assert (full.json()["quota"], full.json()["limit"]) == ("documents", most) and full.json()["used"] > size
        assert post("first").status_code == 200, "it is there"
        assert client.post("/v1/calibrations", json=documents.calibration()).status_code in (413, 507)
        assert client.delete(f"/v1/models/{first.json()['id']}").status_code == 204
        assert post("third").status_code == 201
    with started(Settings(data_dir=tmp_path / "small", documents_bytes_of_tenant=size // 2)) as client:
        never = client.post("/v1/models", json=documents.graph())
        assert (never.status_code, never.json()["quota"]) == (413, "documents")
        assert client.get("/v1/models").json()["items"] == []


@pytest.mark.parametrize(("number", "status"), [(errno.ENOSPC, 507), (errno.EROFS, 503), (errno.EIO, 503)])
def test_a_store_that_takes_nothing_is_refused_before_work_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, status: int
) -> None:
    monkeypatch.setattr("autosbp.service.storage_health._WRITE_TEST_INTERVAL_S", 0.0)
    with started(Settings(data_dir=tmp_path / "data", artifacts=str(tmp_path / "kept"))) as client:
        with monkeypatch.context() as patch:
            patch.setattr("autosbp.service.storage_health._test_write", lambda _folder: OSError(number, "so"))
            assert client.post("/v1/clusters", json={"preset": "local:3"}).status_code == status
            assert client.get("/readyz").status_code == 503
            assert client.post("/v1/jobs/job-0:cancel").status_code == 404, "what only ends work is not refused"
            assert client.get("/v1/clusters").json()["items"] == []
        assert client.post("/v1/clusters", json={"preset": "local:3"}).status_code == 201


def test_an_invalid_artifact_location_is_refused_at_startup(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="artifacts"), running(Settings(data_dir=tmp_path, artifacts="abacus://x/y")):
        raise AssertionError("it has started")


def test_pages_lead_to_what_was_kept(tmp_path: Path) -> None:
    html = {"accept": "text/html"}
    with started(Settings(data_dir=tmp_path / "data")) as client:
        job = calibrated(client, 0.1)
        page = client.get(f"/calibrations/{job['result']['calibration_id']}", headers=html).text
        for each in listed(client, job_id=job["id"]):
            assert f'href="/files/{each["id"]}"' in page
            saved = client.get(f"/files/{each['id']}", headers=html)
            assert saved.content == WANTED[each["name"]]
            assert saved.headers["content-disposition"] == f'attachment; filename="{each["name"]}"'
        assert client.get("/files/art-none", headers=html).status_code == 404
