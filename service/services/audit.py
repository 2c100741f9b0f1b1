"""The audit log, and what is forgotten after a time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from sqlalchemy import delete, select

from service.db import Database
from service.models import NO_TENANT, AuditRow, EndedSessionRow, ReplayRow, now
from service.problems import ProblemError
from service.services._pictures import pictures
from service.services._store import Paged, new_id
from service.services._window import Window
from service.settings import Settings
from service.state import State

COMMAND_LINE = "command line"
"""In the place of an address."""


def listing(state: State, window: Window, strangers: bool, /, **equal: object) -> Paged[AuditRow]:
    """A page of the tenant's log, or of that of ``strangers``; ``ProblemError`` 403 where they are none of the caller's
    business."""
    if not strangers:
        return pictures(state.database, AuditRow, window, **equal)
    operators = state.settings.operator_tenant
    if state.call.caller.tenant != operators:
        detail = "calls of strangers are for the admins of the tenant that operates the service"
        raise ProblemError(403, "forbidden", "The key may not do this", detail)
    return pictures(state.database.of(NO_TENANT), AuditRow, window, **equal)


def note(database: Database, method: str, path: str, status: int = 200, location: str | None = None) -> None:
    """Note what the command line on the service's machine did for the database's tenant, as the call that would have done
    it."""
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


def every(database: Database, tenant: str | None, status: int | None, limit: int) -> Sequence[AuditRow]:
    """The newest entries, newest first; of one tenant (``NO_TENANT``: of strangers) or status, if asked."""
    query = select(AuditRow).order_by(AuditRow.created_at.desc(), AuditRow.id.desc()).limit(limit)
    if tenant is not None:
        query = query.where(AuditRow.tenant == tenant)
    if status is not None:
        query = query.where(AuditRow.status == status)
    with database.read() as session:
        return session.scalars(query).all()


def forget(database: Database, settings: Settings) -> None:
    """Drop answers whose Idempotency-Key has expired, sessions that were ended and would have by now, and audit entries that
    are older, or of more strangers, than settings say."""
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
