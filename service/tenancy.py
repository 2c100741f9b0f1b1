"""Tenant isolation of sessions: a tenant's session neither sees nor writes rows of other tenants.

A session carries its tenant in ``Session.info``. Every ORM select, update and delete is restricted to the tenant's
rows, new rows get the tenant, and a flush that would write another tenant's row fails. A session without a tenant
belongs to the system: job runner, migrations, and the command line on the machine itself. Statements without the ORM
are restricted when they are built (``restricted_to_tenant``).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from sqlalchemy import Select, Table, bindparam, event
from sqlalchemy.orm import ORMExecuteState, Session, sessionmaker, with_loader_criteria
from sqlalchemy.orm.interfaces import ORMOption

from autosbp.service.models import Base

_INFO = "tenant"
TENANT_PARAMETER = "whose"
"""Name of the tenant parameter in statements without the ORM."""


def restrict_sessions(factory: sessionmaker[Session]) -> None:
    """Restrict every session of ``factory`` to its tenant."""
    event.listen(factory, "do_orm_execute", _restrict_statement)
    event.listen(factory, "before_flush", _set_tenant)


def session_info(tenant: str | None) -> dict[str, Any]:
    """The content of ``Session.info`` for a tenant."""
    return {} if tenant is None else {_INFO: tenant}


def tenant_of(session: Session) -> str | None:
    """The session's tenant; None for the system."""
    found: str | None = session.info.get(_INFO)
    return found


def _restrict_statement(state: ORMExecuteState) -> None:
    tenant = tenant_of(state.session)
    if tenant is not None and not state.is_column_load and (state.is_select or state.is_update or state.is_delete):
        state.statement = state.statement.options(_tenant_criteria(tenant))


@lru_cache(maxsize=1024)  # one per tenant: building it takes longer than reading a row
def _tenant_criteria(tenant: str) -> ORMOption:
    return with_loader_criteria(Base, lambda kind: kind.tenant == tenant, include_aliases=True)


def _set_tenant(session: Session, _context: object, _instances: object) -> None:
    tenant = tenant_of(session)
    if tenant is None:
        return
    for row in session.new:
        if row.tenant is None:
            row.tenant = tenant
    for row in (*session.new, *session.dirty, *session.deleted):
        if row.tenant != tenant:
            raise RuntimeError(f"a session of tenant {tenant!r} must not write a row of tenant {row.tenant!r}")


def restricted_to_tenant(statement: Select[Any]) -> Select[Any]:
    """Restrict a statement over tables to the rows of the tenant in ``TENANT_PARAMETER``."""
    for table in statement.get_final_froms():
        if not isinstance(table, Table):
            raise TypeError(f"{table} is not a table; its tenant is unknown")
        statement = statement.where(table.c.tenant == bindparam(TENANT_PARAMETER))
    return statement
