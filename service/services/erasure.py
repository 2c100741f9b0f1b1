"""Permanent erasure of a tenant: its rows in all tables, its keys, and its files.

Its audit entries are deleted too, unless they are to be kept; the erasure itself is logged for the operators' tenant.
Keys are revoked first, so that nobody posts meanwhile. On SQLite deleted content is overwritten.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Table, delete, func, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from autosbp.errors import InputError, ServiceError
from autosbp.service.db import Database
from autosbp.service.jobs._base import FINAL_STATES
from autosbp.service.models import (
    NO_TENANT,
    AuditRow,
    Base,
    JobRow,
    KeyRow,
    RemovedFilesRow,
    TrialRow,
    WorkerRow,
    now,
    table_of,
)
from autosbp.service.services import audit, deleted_files
from autosbp.service.services._queries import new_id
from autosbp.service.settings import Settings

_TRIES = 3
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Erasure:
    """Number of a tenant's rows by table, and the number of places whose files maintenance still has to delete."""

    rows: Mapping[str, int]
    files_left: int = 0


def preview_erasure(database: Database, tenant: str, *, keep_audit: bool = False) -> Erasure:
    """Count what would be erased; raise ``InputError`` for a tenant without stored rows."""
    with database.read() as session:
        rows = {table.name: _count(session, table, tenant) for table in _tables(keep_audit)}
    rows = {name: count for name, count in sorted(rows.items()) if count}
    if not tenant or not rows:
        raise InputError("tenant", tenant, "expected a tenant with stored data")
    return Erasure(rows)


def erase(settings: Settings, database: Database, tenant: str, *, keep_audit: bool = False) -> Erasure:
    """Erase a tenant; raise ``InputError`` if nothing is stored of it, ``ServiceError`` while its jobs have not ended."""
    there = preview_erasure(database, tenant, keep_audit=keep_audit)
    with database.write() as session:
        _check_ended(session, tenant)
        ends = update(KeyRow).where(KeyRow.tenant == tenant, KeyRow.revoked_at.is_(None))
        session.execute(ends.values(revoked_at=now()), execution_options={"synchronize_session": False})
    for _ in range(_TRIES):
        try:
            places = _delete_tenant_rows(database, tenant, keep_audit)
            break
        except IntegrityError:  # a request that was admitted earlier
            continue
    else:
        raise ServiceError(f"tenant {tenant!r} is in use; try again later")
    audit.log_command(database.of(settings.operator_tenant), "DELETE", f"/tenants/{tenant}")
    deleted_files.delete_files(settings, database, places)
    database.truncate_log()
    with database.read() as session:
        return Erasure(there.rows, _count(session, table_of(RemovedFilesRow), tenant))


def _delete_tenant_rows(database: Database, tenant: str, keep_audit: bool) -> list[str]:
    """Delete the rows and return the places of files to delete."""
    with database.write() as session:
        if database.is_sqlite:
            session.connection().exec_driver_sql("PRAGMA secure_delete=ON")
        _check_ended(session, tenant)
        jobs = list(session.scalars(select(JobRow.id).where(JobRow.tenant == tenant)))
        trials = session.scalars(select(TrialRow.id).where(TrialRow.tenant == tenant))
        places = [*(f"jobs/{each}" for each in jobs), *(f"trials/{each}" for each in trials)]
        session.add_all(RemovedFilesRow(id=new_id("rem"), tenant=tenant, place=place) for place in places)
        session.flush()
        for table in _tables(keep_audit):
            session.execute(delete(table).where(table.c.tenant == tenant))
        if session.scalar(select(func.count()).select_from(KeyRow)) == 0:
            session.add(_placeholder_key())
        return places


def _placeholder_key() -> KeyRow:
    """A revoked key without scopes or owner: a database that ever had a key keeps requiring keys."""
    unknown = {"prefix": secrets.token_hex(8), "salt": secrets.token_hex(16), "secret_hash": secrets.token_hex(32)}
    return KeyRow(id=new_id("key"), tenant=NO_TENANT, name="erased", scopes="", revoked_at=now(), **unknown)


def _tables(keep_audit: bool) -> list[Table]:
    """Tables with tenants' rows, referring tables before those that they refer to."""
    kept = {table_of(WorkerRow), table_of(RemovedFilesRow), *([table_of(AuditRow)] if keep_audit else [])}
    return [table for table in reversed(Base.metadata.sorted_tables) if table not in kept]


def _count(session: Session, table: Table, tenant: str) -> int:
    return session.scalar(select(func.count()).select_from(table).where(table.c.tenant == tenant)) or 0


def _check_ended(session: Session, tenant: str) -> None:
    unfinished = select(JobRow.id).where(JobRow.tenant == tenant, JobRow.state.not_in(FINAL_STATES)).limit(_SHOWN)
    if ids := session.scalars(unfinished).all():
        raise ServiceError(f"tenant {tenant!r} has active jobs, such as {', '.join(ids)}; cancel them first")
