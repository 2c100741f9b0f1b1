"""Storage quotas of tenants: for posted or captured documents, and for files of jobs.

What is larger than the whole quota is refused with 413, as it would never fit. What exceeds the remaining room is
refused with 507, which names the quota. Concurrent requests may each see enough room, and together exceed the quota by
what they store.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from autosbp.service.models import ArtifactRow, Base, CalibrationRow, ModelRow, table_of
from autosbp.service.problem_details import ProblemError
from autosbp.service.settings import Settings
from autosbp.service.tenancy import tenant_of


@dataclass(frozen=True, slots=True)
class Quota:
    """A quota: its setting, and the tables whose ``num_bytes`` count."""

    name: str
    setting: str
    kinds: tuple[type[Base], ...]


DOCUMENTS = Quota("documents", "documents_bytes_of_tenant", (ModelRow, CalibrationRow))
FILES = Quota("files", "files_bytes_of_tenant", (ArtifactRow,))


def used_bytes(session: Session, quota: Quota, tenant: str | None, without_job: str | None = None) -> int:
    """Bytes that a tenant has stored, except those of the job ``without_job``."""
    total = 0
    for kind in quota.kinds:
        table = table_of(kind)
        query = select(func.coalesce(func.sum(table.c.num_bytes), 0)).where(table.c.tenant == tenant)
        if without_job is not None:
            query = query.where(table.c.job_id != without_job)
        total += int(session.scalar(query) or 0)
    return total


def limit_bytes(settings: Settings, quota: Quota) -> int:
    """Bytes that a quota allows."""
    return int(getattr(settings, quota.setting))


def require_room(session: Session, settings: Settings, quota: Quota, num_bytes: int) -> None:
    """Raise ``ProblemError`` 413 or 507 unless the session's tenant may store ``num_bytes`` more."""
    most = limit_bytes(settings, quota)
    name = f"the quota of {quota.name} (AUTOSBP_{quota.setting.upper()})"
    if num_bytes > most:
        detail = f"{num_bytes} bytes exceed {name} of {most} bytes"
        raise ProblemError(413, "too-large", "Larger than the quota", detail, quota=quota.name, limit=most)
    taken = used_bytes(session, quota, tenant_of(session))
    if taken + num_bytes > most or (taken >= most and not num_bytes):
        detail = (
            f"{taken} of {most} bytes of {name} are in use; delete some data, or ask the service's operator "
            "for a larger quota"
        )
        raise ProblemError(507, "quota-full", "Quota exceeded", detail, quota=quota.name, limit=most, used=taken)
