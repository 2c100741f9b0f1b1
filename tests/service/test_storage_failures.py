"""A database that is locked, read-only, full or away is answered with 503 or 507, and nothing needs a restart."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event
from starlette.testclient import TestClient

from autosbp.service.services import clusters
from autosbp.service.settings import Settings
from benchmarks.storage.scenarios import FAILURES, Found, run_failure
from tests.service.conftest import running, state_of

pytestmark = pytest.mark.integration


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


@pytest.mark.parametrize("name", FAILURES)
@pytest.mark.some(6)
def test_storage_that_fails_is_503_or_507_and_recovers_without_a_restart(name: str, tmp_path: Path) -> None:
    """A real service each; ``make storage`` has them as a table."""
    if lacks := FAILURES[name].lacks():
        pytest.skip(f"this failure needs {', '.join(lacks)}")
    found = run_failure(FAILURES[name], tmp_path)
    assert not found.bad(FAILURES[name]), found


def test_invalid_rows_are_detected() -> None:
    way = FAILURES["SQLite, locked"]
    good = Found({"503": 8}, {"200": 16}, "200", [], True, 0.1, ["succeeded"] * 2, 1.0)
    assert not good.bad(way)
    wrong: list[dict[str, Any]] = [
        {"odd": ["500"]},
        {"posts": {"201": 8}},
        {"reads": {"200": 15, "503": 1}},
        {"ready": "503"},
        {"recovered_s": None},
        {"searches": ["succeeded", "failed"]},
    ]
    assert all(replace(good, **each).bad(way) for each in wrong)


def test_a_data_folder_that_is_gone_or_a_disk_without_room_is_not_ready(settings: Settings, tmp_path: Path) -> None:
    with running(settings.model_copy(update={"min_free_bytes": 2**62})) as client:
        answer = client.get("/readyz")
        assert (answer.status_code, answer.json()["checks"]["disk"]) == (503, "the disk is almost full")
    with running(settings) as client:
        os.rename(settings.data_dir, tmp_path / "elsewhere")
        assert client.get("/readyz").json()["checks"]["disk"] == "the data folder is not readable"
        os.rename(tmp_path / "elsewhere", settings.data_dir)
        assert client.get("/readyz").status_code == 200


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def copy(path: Path) -> None:
    """As a restored backup would be."""
    path.rename(path.with_name("before"))
    before = path.with_name("before")
    shutil.copytree(before, path) if before.is_dir() else shutil.copy2(before, path)


@pytest.mark.some(3)
@pytest.mark.parametrize("lose", [remove, copy, lambda path: path.rename(path.with_name("before"))])
@pytest.mark.parametrize("name", ["", "autosbp.db", "artifacts"])
def test_nothing_is_accepted_while_what_stores_it_is_elsewhere(
    settings: Settings, name: str, lose: Callable[[Path], Any]
) -> None:
    with running(settings) as client:
        assert post(client, 2).status_code == 201
        lose(settings.data_dir / name)
        answer = post(client, 3)
        assert (answer.status_code, answer.json()["type"]) == (503, "urn:autosbp:problem:storage-unavailable")
        assert int(answer.headers["retry-after"]) > 0
        assert client.get("/readyz").status_code == 503
        if settings.data_dir.with_name("before").exists():  # the data folder itself
            if settings.data_dir.exists():
                shutil.rmtree(settings.data_dir)
            settings.data_dir.with_name("before").rename(settings.data_dir)
            assert post(client, 3).status_code == 201
            assert client.get("/readyz").status_code == 200


def test_what_is_lost_while_it_is_stored_is_not_accepted(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(settings) as client:
        work = clusters.create

        def lose_and_create(*arguments: Any) -> Any:
            made = work(*arguments)
            settings.data_dir.joinpath("autosbp.db").rename(settings.data_dir / "before")
            return made

        monkeypatch.setattr(clusters, "create", lose_and_create)
        assert post(client, 2).status_code == 503
