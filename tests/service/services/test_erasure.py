"""Erasing a tenant: nothing of it is left, and nothing of others is touched."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import func, select

from autosbp.errors import InputError, ServiceError
from autosbp.service.auth.authentication import Authentication
from autosbp.service.db import Database
from autosbp.service.models import Base, EndedSessionRow, JobRow, KeyRow, ReplayRow, WorkerRow, now
from autosbp.service.services import audit, keys
from autosbp.service.services.erasure import erase, preview_erasure
from autosbp.service.settings import Settings
from tests.service.services.test_deletion import planted
from tests.service.test_backup import keep


def filled(settings: Settings, database: Database, tenant: str) -> keys.NewApiKey:
    """A tenant with something in every table, and files."""
    name = f"secret-{tenant}"
    planted(database.of(tenant), name, tenant)
    key = keys.create(database.of(tenant), "key", ["read"])
    audit.log_command(database.of(tenant), "POST", "/v1/models")
    with database.of(tenant).write() as session:
        session.add(EndedSessionRow(id="e" * 64, expires_at=now()))
        session.add(ReplayRow(id="r" * 64, fingerprint="f", owner="o", status=200, body=name, expires_at=now()))
    folder = settings.data_dir.resolve() / "trials" / f"tri-{name}"
    folder.mkdir(parents=True)
    (folder / "log.txt").write_text(name)
    keep(settings, database, f"job-{name}", "ranks.log", name, tenant)
    return key


def rows(database: Database, tenant: str) -> dict[str, int]:
    with database.read() as session:
        counted = {
            table.name: session.scalar(select(func.count()).select_from(table).where(table.c.tenant == tenant)) or 0
            for table in Base.metadata.sorted_tables
        }
    return {name: count for name, count in counted.items() if count}


@pytest.mark.parametrize("keep_audit", [False, True])
def test_nothing_of_a_tenant_is_left_and_others_stay(database: Database, tmp_path: Path, keep_audit: bool) -> None:
    settings = Settings(data_dir=tmp_path / "data", operator_tenant="operators")
    for tenant in ("gone", "stays"):
        filled(settings, database, tenant)
    before = rows(database, "stays")
    assert before.keys() >= {"api_keys", "artifacts", "audit", "ended_sessions", "jobs", "replays", "trials"}
    shown = preview_erasure(database, "gone", keep_audit=keep_audit)
    assert rows(database, "gone") == before, "a look changes nothing"
    done = erase(settings, database, "gone", keep_audit=keep_audit)
    assert (done.rows, done.files_left) == (shown.rows, 0)
    assert rows(database, "gone") == ({"audit": 1} if keep_audit else {})
    assert rows(database, "stays") == before
    data = settings.data_dir.resolve()
    assert sorted(each.name for each in data.glob("*/*")) == ["job-secret-stays", "tri-secret-stays"]
    with pytest.raises(InputError, match="tenant"):
        erase(settings, database, "nobody")
    assert [(row.method, row.path) for row in audit.newest_entries(database, "operators", None, 9)] == [
        ("DELETE", "/tenants/gone")
    ]


def test_what_is_erased_is_not_in_sqlites_files_any_more(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "data")
    database = Database(settings.url)
    database.upgrade()
    filled(settings, database, "gone")
    database.checkpoint()
    assert any(b"secret-gone" in path.read_bytes() for path in settings.data_dir.glob("autosbp.db*"))
    erase(settings, database, "gone")
    for path in settings.data_dir.glob("autosbp.db*"):
        assert b"secret-gone" not in path.read_bytes(), path
    database.close()


def test_a_database_whose_keys_are_all_erased_goes_on_to_ask_for_them(database: Database, tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "data")
    filled(settings, database, "gone")
    erase(settings, database, "gone")
    assert Authentication(settings, database).needs_keys()
    with database.read() as session:
        (left,) = session.scalars(select(KeyRow))
    assert (left.tenant, left.scopes, left.revoked_at is not None) == ("", "", True)


def test_a_tenant_with_jobs_that_have_not_ended_is_not_erased(database: Database, tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "data")
    filled(settings, database, "busy")
    with database.of("busy").write() as session:
        session.add(JobRow(id="job-runs", kind="search", payload={}, state="running"))
    before = rows(database, "busy")
    with pytest.raises(ServiceError, match="job-runs"):
        erase(settings, database, "busy")
    assert rows(database, "busy") == before


def test_workers_are_of_no_tenant(database: Database, tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "data")
    filled(settings, database, "default")
    with database.write() as session:
        session.add(WorkerRow(id="w", tenant="default", machine="m", pid=1, started=1))
    erase(settings, database, "default")
    assert rows(database, "default").keys() <= {"workers", "audit"}
