"""The audit log, and what is forgotten after a time."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import delete

from service.db import Database
from service.models import AuditRow, EndedSessionRow, ReplayRow, now
from service.services._pictures import pictures
from service.services._store import Paged
from service.services._window import Window
from service.settings import Settings
from service.state import State


def listing(state: State, window: Window, /, **equal: object) -> Paged[AuditRow]:
    """A page of the tenant's log."""
    return pictures(state.database, AuditRow, window, **equal)


def forget(database: Database, settings: Settings) -> None:
    """Drop answers whose Idempotency-Key has expired, sessions that were ended and would have by now, and audit entries that
    are older than settings say."""
    with database.write() as session:
        session.execute(delete(ReplayRow).where(ReplayRow.expires_at <= now()))
        session.execute(delete(EndedSessionRow).where(EndedSessionRow.expires_at <= now()))
        session.execute(delete(AuditRow).where(AuditRow.created_at <= now() - timedelta(days=settings.audit_days)))
