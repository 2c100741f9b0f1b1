"""Backups: taken beside a service that is written to, read back, and restored where none runs."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from autosbp.errors import InputError, ServiceError
from autosbp.service.artifact_storage import ArtifactStorage
from autosbp.service.backup import _restore as restoring
from autosbp.service.backup import backup, restore
from autosbp.service.db import Database
from autosbp.service.models import DEFAULT_TENANT, ArtifactRow, JobRow, ModelRow
from autosbp.service.process_lock import ProcessLock
from autosbp.service.settings import Settings
from tests.service.conftest import NewUrl
from tests.service.postgres import programs
from tests.service.server import ROOT
from tests.service.services.test_deletion import planted

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def own_mask() -> Iterator[None]:
    mask = os.umask(0o022)
    yield
    os.umask(mask)


@pytest.fixture(autouse=True)
def on_path(monkeypatch: pytest.MonkeyPatch, new_url: NewUrl) -> None:
    monkeypatch.setenv("PATH", f"{programs()}:{os.environ['PATH']}")


@pytest.fixture
def place(tmp_path: Path, new_url: NewUrl) -> Settings:
    """A service with a trial, a log, and an artifact."""
    return filled(Settings(data_dir=tmp_path / "data", database_url=new_url()), "one")


def filled(settings: Settings, name: str) -> Settings:
    database = Database(settings.url)
    database.upgrade()
    planted(database, name)
    data = settings.data_dir.resolve()
    for folder in (data / "trials" / f"tri-{name}", data / "trials" / "tri-unknown"):
        folder.mkdir(parents=True)
        (folder / "log.txt").write_text(f"log of {name}")
    (data / "session.secret").write_text(name)
    keep(settings, database, f"job-{name}", "ranks.log", f"ranks of {name}")
    database.close()
    return settings


def keep(settings: Settings, database: Database, job: str, name: str, text: str, tenant: str = DEFAULT_TENANT) -> str:
    scratch = settings.data_dir.resolve() / "scratch"
    scratch.write_text(text)
    with scratch.open("rb") as file:
        kept = ArtifactStorage(settings.artifacts_url).pin_folder().put(f"{job}/{name}", file)
    scratch.unlink()
    identifier = f"art-{hashlib.sha256(f'{job}/{name}'.encode()).hexdigest()[:32]}"
    with database.of(tenant).write() as session:
        row = {"num_bytes": kept.num_bytes, "sha256": kept.sha256}
        session.add(ArtifactRow(id=identifier, job_id=job, name=name, **row))
    return identifier


def held(settings: Settings) -> dict[str, Any]:
    """What a place holds: rows of models and jobs, and its files."""
    database = Database(settings.url)
    with database.read() as session:
        rows = {
            kind.__tablename__: sorted(session.scalars(select(kind.id))) for kind in (ModelRow, JobRow, ArtifactRow)
        }
    database.close()
    data = settings.data_dir.resolve()
    folders = ("trials", "calibrations", "owed", "artifacts")
    files = {
        str(path.relative_to(data)): path.read_text()
        for folder in folders
        for path in sorted((data / folder).rglob("*"))
        if path.is_file()
    }
    return {**rows, "files": files, "secret": (data / "session.secret").read_text()}


def test_what_is_restored_is_what_was_backed_up(place: Settings, tmp_path: Path, new_url: NewUrl) -> None:
    before = held(place)
    path, manifest = backup(place, tmp_path)
    assert path.parent == tmp_path and path.name.startswith("autosbp-") and manifest.left_out == ()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".")] == []
    there = Settings(data_dir=tmp_path / "other", database_url=new_url())
    assert restore(there, path) == manifest
    del before["files"]["trials/tri-unknown/log.txt"]  # of no trial
    assert held(there) == before
    assert all(
        not stat.S_IMODE(each.stat().st_mode) & 0o077 for each in (tmp_path / "other").rglob("*") if each.is_file()
    )
    database = Database(there.url)
    assert database.is_current()
    database.close()


def test_a_backup_beside_posts_is_of_one_moment(place: Settings, tmp_path: Path, new_url: NewUrl) -> None:
    stop, database = threading.Event(), Database(place.url)

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            with database.of(DEFAULT_TENANT).write() as session:
                session.add(JobRow(id=f"job-{number}", kind="trial", payload={}, state="succeeded"))
            keep(place, database, f"job-{number}", "log", "x" * 1000)
            if number % 3 == 0:  # as old artifacts are forgotten: the file first
                ArtifactStorage(place.artifacts_url).remove(f"job-{number}/log")
                with database.of(DEFAULT_TENANT).write() as session:
                    session.query(ArtifactRow).filter(ArtifactRow.job_id == f"job-{number}").delete()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for number in range(3):
            path, _ = backup(place, tmp_path / f"{number}.tar")
            there = Settings(data_dir=tmp_path / f"{number}", database_url=new_url())
            restore(there, path)
            found = Database(there.url)
            with found.read() as session:
                rows = session.execute(select(ArtifactRow.job_id, ArtifactRow.name, ArtifactRow.sha256)).all()
                jobs = session.scalar(select(func.count(JobRow.id))) or 0
            assert 0 <= jobs - len(rows) <= 2 + jobs // 3
            for job, name, sha256 in rows:
                with ArtifactStorage(there.artifacts_url).open(f"{job}/{name}") as file:
                    assert hashlib.sha256(file.read()).hexdigest() == sha256
            found.close()
    finally:
        stop.set()
        thread.join()
        database.close()


def test_an_artifact_whose_file_is_gone_is_left_out(place: Settings, tmp_path: Path, new_url: NewUrl) -> None:
    ArtifactStorage(place.artifacts_url).remove("job-one/ranks.log")
    path, manifest = backup(place, tmp_path / "b.tar")
    assert manifest.left_out == tuple(held(place)["artifacts"]) and len(manifest.left_out) == 1
    there = Settings(data_dir=tmp_path / "other", database_url=new_url())
    restore(there, path)
    assert held(there)["artifacts"] == []


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20_000])


def _flip(path: Path) -> None:
    with tarfile.open(path) as tar:
        start = next(each.offset_data for each in tar if each.name.startswith("trials/"))
    content = bytearray(path.read_bytes())
    content[start] ^= 1
    path.write_bytes(content)


def _add(path: Path) -> None:
    with tarfile.open(path, "a") as tar:
        tar.add(__file__, "../../evil")


@pytest.mark.parametrize("harm", [_cut, _flip, _add, lambda path: path.write_bytes(b"no tar"), Path.unlink])
def test_a_backup_that_is_not_whole_changes_nothing(
    place: Settings, tmp_path: Path, harm: Callable[[Path], object]
) -> None:
    path, _ = backup(place, tmp_path / "b.tar")
    harm(path)
    before = held(place)
    with pytest.raises(InputError, match="backup"):
        restore(place, path, replace=True)
    assert held(place) == before
    assert [each.name for each in place.data_dir.iterdir() if each.name.startswith((".restore", "replaced"))] == []


def test_a_place_that_is_used_is_replaced_only_where_that_is_asked_for(
    place: Settings, tmp_path: Path, new_url: NewUrl
) -> None:
    path, _ = backup(place, tmp_path / "b.tar")
    with pytest.raises(InputError, match="new file"):
        backup(place, path)
    other = filled(Settings(data_dir=tmp_path / "other", database_url=new_url()), "two")
    before = held(other)
    with pytest.raises(InputError, match="--replace"):
        restore(other, path)
    assert held(other) == before
    restore(other, path, replace=True)
    assert held(other)["models"] == ["mod-one"] and held(other)["secret"] == "one"
    assert [each.name for each in other.data_dir.iterdir() if each.name.startswith("replaced")] == []


def test_a_restore_that_fails_puts_everything_back(
    place: Settings, tmp_path: Path, new_url: NewUrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = backup(place, tmp_path / "b.tar")
    other = filled(Settings(data_dir=tmp_path / "other", database_url=new_url()), "two")
    before = held(other)
    for kind in (restoring._stores._Sqlite, restoring._stores._Postgres):
        monkeypatch.setattr(kind, "load", lambda *_: (_ for _ in ()).throw(OSError("no room")))
    with pytest.raises(ServiceError, match="no room"):
        restore(other, path, replace=True)
    assert held(other) == before


def test_a_restore_that_is_killed_is_run_again(place: Settings, tmp_path: Path, new_url: NewUrl) -> None:
    path, _ = backup(place, tmp_path / "b.tar")
    other = filled(Settings(data_dir=tmp_path / "other", database_url=new_url()), "two")
    program = (
        "import os, signal, sys; from pathlib import Path; from autosbp.service.backup import _restore, restore; "
        "from autosbp.service.settings import Settings; "
        "kill = lambda *_: os.kill(os.getpid(), signal.SIGKILL); "
        "_restore._stores._Sqlite.load = _restore._stores._Postgres.load = kill; "
        "restore(Settings(data_dir=Path(sys.argv[1]), database_url=sys.argv[2]), Path(sys.argv[3]), replace=True)"
    )
    command = [sys.executable, "-c", program, str(other.data_dir), other.url, str(path)]
    died = subprocess.run(command, cwd=ROOT, env=dict(os.environ))
    assert died.returncode == -signal.SIGKILL
    (kept,) = other.data_dir.glob("replaced-*")
    assert (kept / "session.secret").read_text() == "two"
    database = Database(other.url)
    with pytest.raises(ServiceError, match="restore"):
        ProcessLock(database, other.data_dir).take()
    database.close()
    restore(other, path, replace=True)
    assert held(other)["models"] == ["mod-one"]
    database = Database(other.url)
    hold = ProcessLock(database, other.data_dir)
    hold.take()
    hold.release()
    database.close()


def test_nothing_is_restored_into_a_service_that_runs(place: Settings, tmp_path: Path) -> None:
    path, _ = backup(place, tmp_path / "b.tar")
    database = Database(place.url)
    hold = ProcessLock(database, place.data_dir)
    hold.take()
    with database.engine.connect() as connection:
        connection.execute(select(1))
        with pytest.raises(ServiceError, match="another service|other connections"):
            restore(place, path, replace=True)
    hold.release()
    database.close()


def test_a_backup_of_another_kind_of_database_or_a_newer_schema_is_refused(
    place: Settings, tmp_path: Path, new_url: NewUrl
) -> None:
    path, manifest = backup(place, tmp_path / "b.tar")
    folder = tmp_path / "unpacked"
    with tarfile.open(path) as tar:
        tar.extractall(folder, filter="data")
    there = Settings(data_dir=tmp_path / "other", database_url=new_url())
    for change, word in (({"revision": "9999"}, "9999"), ({"database": "database.other"}, "database.other")):
        document = {**json.loads((folder / "manifest.json").read_text()), **change}
        (folder / "changed.json").write_text(json.dumps(document))
        with tarfile.open(tmp_path / "c.tar", "w") as tar:
            for name in manifest.files:
                tar.add(folder / name, name)
            tar.add(folder / "changed.json", "manifest.json")
        with pytest.raises(InputError, match=word):
            restore(there, tmp_path / "c.tar")


def test_what_cannot_be_dumped_leaves_no_file(place: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "autosbp.service.backup._backup._check", lambda *_: (_ for _ in ()).throw(ServiceError("incomplete"))
    )
    target = tmp_path / "folder"
    target.mkdir()
    with pytest.raises(ServiceError, match="incomplete"):
        backup(place, target)
    assert list(target.iterdir()) == []


def test_the_copy_of_a_damaged_database_is_refused(tmp_path: Path) -> None:
    settings = filled(Settings(data_dir=tmp_path / "data"), "one")
    path, manifest = backup(settings, tmp_path / "b.tar")
    with tarfile.open(path) as tar:
        tar.extract("database.sqlite", tmp_path, filter="data")
    store = restoring._stores.store_of(Database(settings.url))
    dump = tmp_path / "database.sqlite"
    store.check(dump, manifest.rows)
    with sqlite3.connect(dump) as connection:
        connection.execute("DELETE FROM trials")
    with pytest.raises(ServiceError, match="0 of 1 rows of trials"):
        store.check(dump, manifest.rows)
    content = bytearray(dump.read_bytes())
    content[4096 * 3 : 4096 * 8] = b"?" * 4096 * 5
    dump.write_bytes(content)
    with pytest.raises(ServiceError, match="corrupt|cannot read"):
        store.check(dump, manifest.rows)


def test_without_the_programs_of_postgresql_it_is_said(
    place: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if place.url.startswith("sqlite"):
        return
    monkeypatch.setenv("PATH", str(tmp_path))
    assert shutil.which("pg_dump") is None
    with pytest.raises(Exception, match="pg_dump is not on the PATH"):
        backup(place, tmp_path / "b.tar")
