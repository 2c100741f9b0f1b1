"""The audit log, and deletion of expired records."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from sqlalchemy import delete, select

from autosbp.service.db import Database
from autosbp.service.models import NO_TENANT, AuditRow, EndedSessionRow, ReplayRow, now
from autosbp.service.problem_details import ProblemError
from autosbp.service.request_state import AppState
from autosbp.service.services._fast_reads import read_page
from autosbp.service.services._list_page import ListPage
from autosbp.service.services._queries import Paged, new_id
from autosbp.service.settings import Settings

COMMAND_LINE = "command line"
"""Stands for the address of calls by the command line."""


def listing(state: AppState, window: ListPage, strangers: bool, /, **equal: object) -> Paged[AuditRow]:
    """Return a page of the tenant's log, or of the calls of strangers.

    Raises ``ProblemError`` 403 if strangers' calls are requested by another tenant than the operators'.
    """
    if not strangers:
        return read_page(state.database, AuditRow, window, **equal)
    operators = state.settings.operator_tenant
    if state.call.caller.tenant != operators:
        detail = "unauthenticated calls are visible only to admins of the operating tenant"
        raise ProblemError(403, "forbidden", "The key may not do this", detail)
    return read_page(state.database.of(NO_TENANT), AuditRow, window, **equal)


def log_command(database: Database, method: str, path: str, status: int = 200, location: str | None = None) -> None:
    """Log what the command line did for the database's tenant, as the equivalent HTTP call."""
    with database.write() as session:
        session.add(
            AuditRow(
                id=new_id("aud"),
                address=COMMAND_LINE,
                method=method,
                path=path,
                status=status,
                request_id="-",
                location=location,
            )
        )


def newest_entries(database: Database, tenant: str | None, status: int | None, limit: int) -> Sequence[AuditRow]:
    """The newest entries, newest first, optionally of one tenant (``NO_TENANT``: of strangers) or status."""
    query = select(AuditRow).order_by(AuditRow.created_at.desc(), AuditRow.id.desc()).limit(limit)
    if tenant is not None:
        query = query.where(AuditRow.tenant == tenant)
    if status is not None:
        query = query.where(AuditRow.status == status)
    with database.read() as session:
        return session.scalars(query).all()


def delete_expired(database: Database, settings: Settings) -> None:
    """Delete expired idempotency keys, expired entries of ended sessions, and old audit entries.

    The settings limit the age of audit entries, and the number of entries of strangers.
    """
    with database.write() as session:
        session.execute(delete(ReplayRow).where(ReplayRow.expires_at <= now()))
        session.execute(delete(EndedSessionRow).where(EndedSessionRow.expires_at <= now()))
        session.execute(delete(AuditRow).where(AuditRow.created_at <= now() - timedelta(days=settings.audit_days)))
        of_strangers = AuditRow.tenant == NO_TENANT
        newest = (AuditRow.created_at.desc(), AuditRow.id.desc())
        place = (
            select(AuditRow.created_at).where(of_strangers).order_by(*newest).offset(settings.audit_strangers).limit(1)
        )
        if (oldest := session.scalar(place)) is not None:
            session.execute(delete(AuditRow).where(of_strangers, AuditRow.created_at <= oldest))
