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
from service.models import ArtifactRow, now
from service.objects import Objects
from service.services import artifacts, retention
from service.services.kinds import kinds
from service.settings import Settings
from tests.service import documents
from tests.service.conftest import running, state_of

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
        Objects("s3://lab")._files.mkdir("lab")
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
    job = client.post("/v1/calibrations", json={"cluster_id": cluster, "point_s": point_s}).json()
    return documents.wait(client, job["id"])


def listed(client: TestClient, **asked: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = client.get("/v1/artifacts", params=asked).json()["items"]
    return items


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


def test_they_go_when_they_are_old(tmp_path: Path, place: str) -> None:
    settings = Settings(data_dir=tmp_path / "data", artifacts=place, files_days=30)
    with started(settings) as client:
        old, young = calibrated(client, 0.1)["id"], calibrated(client, 0.3)["id"]
        database = state_of(client).database
        with database.write() as session:
            moved = update(ArtifactRow).where(ArtifactRow.job_id == old)
            session.execute(moved.values(created_at=now() - timedelta(days=31)))
        gone = listed(client, job_id=old)
        artifacts.forget(database, Objects(place), settings.files_days)
        assert listed(client, job_id=old) == [] and len(listed(client, job_id=young)) == len(WANTED)
        assert client.get(f"/v1/artifacts/{gone[0]['id']}/content").status_code == 404
        for name in WANTED:
            with pytest.raises(FileNotFoundError):
                Objects(place).open(f"{old}/{name}")
            with Objects(place).open(f"{young}/{name}") as file:
                assert file.read() == WANTED[name]


@pytest.mark.parametrize(
    "instead", [lambda _place: None, Path.touch, Path.mkdir], ids=["nothing", "a file", "a folder"]
)
def test_what_a_job_leaves_while_the_store_is_gone_is_kept_when_it_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, instead: Callable[[Path], None]
) -> None:
    monkeypatch.setattr("service.chores._OWED_EVERY_S", 0.2)
    place, settings = tmp_path / "kept", Settings(data_dir=tmp_path / "data", artifacts=str(tmp_path / "kept"))
    with started(settings) as client:
        kept = listed(client, job_id=calibrated(client, 0.1)["id"])
        keep = artifacts.keep

        def lose_and_keep(*arguments: Any) -> Any:  # a disk that is unmounted as a job ends
            place.rename(tmp_path / "away")
            instead(place)
            return keep(*arguments)

    monkeypatch.setattr(artifacts, "keep", lose_and_keep)
    with started(settings) as client:
        job = calibrated(client, 0.3)
        assert (job["state"], listed(client, job_id=job["id"])) == ("succeeded", [])
        assert f"ranks.log of job {job['id']} is not kept yet" in caplog.text
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
        documents.wait_until(lambda: not artifacts.owed(settings))
        assert {each["name"] for each in listed(client, job_id=job["id"])} == set(WANTED)
        for each in (*kept, *listed(client, job_id=job["id"])):
            content = client.get(f"/v1/artifacts/{each['id']}/content")
            assert (content.status_code, content.content) == (200, WANTED[each["name"]])
        assert client.post("/v1/clusters", json={"preset": "local:3"}).status_code == 201


def test_what_can_never_be_kept_is_not_owed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifacts, "_MOST_BYTES", 10)
    settings = Settings(data_dir=tmp_path / "data")
    with started(settings) as client:
        job = calibrated(client, 0.1)["id"]
        assert {each["name"] for each in listed(client, job_id=job)} == WANTED.keys() - {"ranks.log"}
    assert "ranks.log" in caplog.text and artifacts.owed(settings) == []


@pytest.mark.parametrize(("number", "status"), [(errno.ENOSPC, 507), (errno.EROFS, 503), (errno.EIO, 503)])
def test_a_store_that_takes_nothing_is_refused_before_work_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, status: int
) -> None:
    monkeypatch.setattr("service.places._TRY_S", 0.0)
    with started(Settings(data_dir=tmp_path / "data", artifacts=str(tmp_path / "kept"))) as client:
        with monkeypatch.context() as patch:
            patch.setattr("service.places._tried", lambda _folder: OSError(number, "so"))
            assert client.post("/v1/clusters", json={"preset": "local:3"}).status_code == status
            assert client.get("/readyz").status_code == 503
            assert client.post("/v1/jobs/job-0:cancel").status_code == 404, "what only ends work is not refused"
            assert client.get("/v1/clusters").json()["items"] == []
        assert client.post("/v1/clusters", json={"preset": "local:3"}).status_code == 201


def test_a_place_that_is_none_is_refused_at_the_start(tmp_path: Path) -> None:
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
