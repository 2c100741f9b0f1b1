"""A database that is locked, read-only, full or away is answered with 503 or 507, and nothing needs a restart."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import create_engine, event, text
from starlette.testclient import TestClient

from service.settings import Settings
from tests.service import documents
from tests.service.conftest import running, state_of
from tests.service.postgres import Postgres
from tests.service.server import Server


def post(client: TestClient, count: int) -> Any:
    return client.post("/v1/clusters", json={"preset": f"local:{count}"})


def on_connect(client: TestClient, pragma: str) -> Callable[[], None]:
    """Run a pragma on every new connection; the returned function ends that."""
    engine = state_of(client).database.engine

    def run(connection: Any, _record: object) -> None:
        connection.execute(pragma)

    def stop() -> None:
        event.remove(engine, "connect", run)
        engine.dispose()

    event.listen(engine, "connect", run)
    engine.dispose()
    return stop


def test_a_locked_database_is_503_until_the_lock_is_gone(settings: Settings) -> None:
    with running(settings.model_copy(update={"lock_timeout_s": 0.2})) as client:
        other = sqlite3.connect(settings.data_dir / "autosbp.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        answer = post(client, 2)
        assert (answer.status_code, answer.headers["content-type"]) == (503, "application/problem+json")
        assert answer.json()["type"] == "urn:autosbp:problem:storage-unavailable"
        assert answer.headers["retry-after"]
        assert client.get("/v1/clusters").status_code == 200, "reading goes on"
        other.execute("ROLLBACK")
        other.close()
        assert post(client, 2).status_code == 201


@pytest.mark.parametrize(
    ("pragma", "status", "name"),
    [("PRAGMA query_only=ON", 503, "storage-unavailable"), ("PRAGMA max_page_count=1", 507, "storage-full")],
)
def test_a_read_only_or_full_database_recovers(settings: Settings, pragma: str, status: int, name: str) -> None:
    with running(settings) as client:
        assert post(client, 2).status_code == 201
        stop = on_connect(client, pragma)
        answers = [post(client, count) for count in range(3, 60)]
        refused = [answer for answer in answers if answer.status_code != 201]
        assert refused and {answer.status_code for answer in refused} == {status}
        assert {answer.json()["type"] for answer in refused} == {f"urn:autosbp:problem:{name}"}
        assert client.get("/v1/clusters").status_code == 200
        stop()
        assert post(client, 60).status_code == 201


@pytest.mark.skipif(os.geteuid() != 0 and not os.environ.get("CI"), reason="a disk of its own needs root")
def test_a_disk_that_is_full_is_507_until_there_is_room_again(tmp_path: Path) -> None:
    """A real one, of 16 MB, in a namespace of the service."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = 'mount -t tmpfs -o size=16m tmpfs "$0" && exec "$@"'
    within = ("unshare", "--mount", "sh", "-c", mount, str(folder))
    with (
        Server(folder / "data", within=within, min_free_bytes=10**6) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):

        def post(number: int) -> httpx.Response:
            return client.post("/v1/models", json={**documents.graph(), "name": f"model-{number}"})

        assert post(0).status_code == 201
        asked = {
            "model_id": client.post("/v1/models", json=documents.graph()).json()["id"],
            "cluster_id": client.post("/v1/clusters", json={"preset": "local:2"}).json()["id"],
            "options": documents.OPTIONS,
        }
        accepted = client.post("/v1/searches", json=asked).json()["id"]
        filling = Path(f"/proc/{server.pid}/root{folder}/filling")
        with pytest.raises(OSError, match="No space left"), filling.open("wb", buffering=0) as file:
            while True:
                assert file.write(bytes(4096)) == 4096
        answers = [post(number) for number in range(1, 60)]
        refused = [answer for answer in answers if answer.status_code != 201]
        assert {answer.status_code for answer in refused} == {507}, [answer.text for answer in refused]
        assert refused[-1] is answers[-1] and refused[-1].headers["retry-after"]
        assert client.get("/v1/models").status_code == 200
        assert client.get("/readyz").json()["checks"]["disk"] == "the disk is almost full"
        filling.unlink()
        assert post(100).status_code == 201 and client.get("/readyz").status_code == 200
        assert documents.wait(client, accepted)["state"] == "succeeded"


@pytest.mark.skipif(
    os.geteuid() != 0 or not os.path.exists("/dev/loop-control") or shutil.which("mkfs.ext4") is None,
    reason="a disk that fails needs root, a loop device and mkfs.ext4",
)
def test_a_disk_that_fails_and_becomes_read_only_is_503_and_not_ready(tmp_path: Path) -> None:
    """As the kernel makes it of one with errors, in the middle of the service's work. What was stored is served on."""
    image, folder = tmp_path / "image", tmp_path / "disk"
    folder.mkdir()
    with image.open("wb") as file:
        file.truncate(64 * 2**20)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    mount = 'mount -o loop,errors=remount-ro "$1" "$0" && shift && exec "$@"'
    within = ("unshare", "--mount", "sh", "-c", mount, str(folder), str(image))
    with (
        Server(folder / "data", within=within, min_free_bytes=10**6) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        assert client.post("/v1/clusters", json={"preset": "local:2"}).status_code == 201
        assert client.get("/readyz").status_code == 200
        aborted = ["nsenter", "--mount", "--target", str(server.pid), "mount", "-o", "remount,abort", str(folder)]
        subprocess.run(aborted, check=True)
        answers = [client.post("/v1/clusters", json={"preset": f"local:{count}"}) for count in range(3, 9)]
        answers.append(client.post("/v1/models", json=documents.graph()))
        assert {answer.status_code for answer in answers} == {503}
        assert {answer.json()["type"] for answer in answers} == {"urn:autosbp:problem:storage-unavailable"}
        assert [cluster["name"] for cluster in client.get("/v1/clusters").json()["items"]] == ["local:2"]
        ready = client.get("/readyz")
        assert (ready.status_code, ready.json()["checks"]["disk"]) == (503, "the data folder is on a read-only disk")
        assert client.get("/healthz").status_code == 200


def test_a_postgresql_that_stops_is_503_and_not_ready_until_it_is_back(settings: Settings, postgres: Postgres) -> None:
    server = postgres
    with running(settings.model_copy(update={"database_url": server.database()})) as client:
        assert post(client, 2).status_code == 201
        server.stop()
        for answer in (post(client, 3), client.get("/v1/clusters"), client.get("/readyz")):
            assert answer.status_code == 503, answer.text
            assert "retry-after" in answer.headers
        assert client.get("/healthz").status_code == 200
        server.start()
        assert post(client, 3).status_code == 201
        assert client.get("/readyz").status_code == 200


def test_a_locked_or_read_only_postgresql_is_503_until_it_is_not(settings: Settings, postgres: Postgres) -> None:
    url = postgres.database()
    with running(settings.model_copy(update={"database_url": url, "lock_timeout_s": 0.2})) as client:
        assert post(client, 2).status_code == 201
        beside = create_engine(url.replace("postgresql:", "postgresql+psycopg:"), isolation_level="AUTOCOMMIT")
        name = beside.url.database
        ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :name AND pid <> pg_backend_pid()"

        def refused(count: int) -> None:
            answer = post(client, count)
            assert (answer.status_code, answer.json()["type"]) == (503, "urn:autosbp:problem:storage-unavailable")
            assert answer.headers["retry-after"]
            documents.wait_until(lambda: client.get("/v1/clusters").status_code == 200)  # reading goes on

        with beside.connect() as other:
            other.execute(text("BEGIN"))
            other.execute(text("LOCK TABLE clusters IN EXCLUSIVE MODE"))
            refused(3)
            other.execute(text("ROLLBACK"))
            assert post(client, 3).status_code == 201
            other.execute(text(f"ALTER DATABASE {name} SET default_transaction_read_only = on"))
            other.execute(text(ended), {"name": name})  # it counts for new connections
            documents.wait_until(lambda: client.get("/v1/clusters").status_code == 200)
            refused(4)
            other.execute(text(f"ALTER DATABASE {name} RESET default_transaction_read_only"))
            other.execute(text(ended), {"name": name})
            documents.wait_until(lambda: client.get("/v1/clusters").status_code == 200)
        beside.dispose()
        documents.wait_until(lambda: post(client, 4).status_code == 201)  # the pool may have connections that were ended


def test_a_data_folder_that_is_gone_or_a_disk_without_room_is_not_ready(settings: Settings, tmp_path: Path) -> None:
    with running(settings.model_copy(update={"min_free_bytes": 2**62})) as client:
        answer = client.get("/readyz")
        assert (answer.status_code, answer.json()["checks"]["disk"]) == (503, "the disk is almost full")
    with running(settings) as client:
        os.rename(settings.data_dir, tmp_path / "elsewhere")
        assert client.get("/readyz").json()["checks"]["disk"] == "the data folder cannot be read"
        os.rename(tmp_path / "elsewhere", settings.data_dir)
        assert client.get("/readyz").status_code == 200
