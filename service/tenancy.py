"""Sessions of one tenant: they see no row of another tenant and write none, whatever the query says.

A session carries its tenant in ``Session.info``. Every ORM select, update and delete in it is narrowed to the tenant's rows,
new rows get the tenant, and a flush that would write another tenant's row fails. A session without a tenant is the
system's own: the job runner's, the migrations', the command line's on the machine itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import event
from sqlalchemy.orm import ORMExecuteState, Session, sessionmaker, with_loader_criteria

from service.models import Base

_INFO = "tenant"


def guard(factory: sessionmaker[Session]) -> None:
    """Make every session of ``factory`` keep to its tenant."""
    event.listen(factory, "do_orm_execute", _narrow)
    event.listen(factory, "before_flush", _stamp)


def info(tenant: str | None) -> dict[str, Any]:
    """What ``Session.info`` holds."""
    return {} if tenant is None else {_INFO: tenant}


def tenant_of(session: Session) -> str | None:
    """The session's tenant; None for the system."""
    found: str | None = session.info.get(_INFO)
    return found


def _narrow(state: ORMExecuteState) -> None:
    tenant = tenant_of(state.session)
    if tenant is not None and not state.is_column_load and (state.is_select or state.is_update or state.is_delete):
        state.statement = state.statement.options(with_loader_criteria(Base, _is(tenant), include_aliases=True))


def _is(tenant: str) -> Callable[[type[Base]], Any]:
    return lambda kind: kind.tenant == tenant


def _stamp(session: Session, _context: object, _instances: object) -> None:
    tenant = tenant_of(session)
    if tenant is None:
        return
    for row in session.new:
        if row.tenant is None:
            row.tenant = tenant
    for row in (*session.new, *session.dirty, *session.deleted):
        if row.tenant != tenant:
            raise RuntimeError(f"a session of tenant {tenant!r} would write a row of tenant {row.tenant!r}")
