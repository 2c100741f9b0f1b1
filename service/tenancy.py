"""Sessions of one tenant: they see no row of another tenant and write none, whatever the query says.

A session carries its tenant in ``Session.info``. Every ORM select, update and delete in it is narrowed to the tenant's rows,
new rows get the tenant, and a flush that would write another tenant's row fails. A session without a tenant is the
system's own: the job runner's, the migrations', the command line's on the machine itself. Statements that go without the ORM
are narrowed when they are built (``narrowed``).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from sqlalchemy import Select, Table, bindparam, event
from sqlalchemy.orm import ORMExecuteState, Session, sessionmaker, with_loader_criteria
from sqlalchemy.orm.interfaces import ORMOption

from service.models import Base

_INFO = "tenant"
PARAMETER = "whose"
"""The parameter that holds the tenant in statements without the ORM."""


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
        state.statement = state.statement.options(_only(tenant))


@lru_cache(maxsize=1024)  # made once for a tenant, because making it takes longer than reading a row
def _only(tenant: str) -> ORMOption:
    return with_loader_criteria(Base, lambda kind: kind.tenant == tenant, include_aliases=True)


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


def narrowed(statement: Select[Any]) -> Select[Any]:
    """A statement over tables that sees the rows of the tenant alone that ``PARAMETER`` will hold."""
    for table in statement.get_final_froms():
        if not isinstance(table, Table):
            raise TypeError(f"{table} is no table, so its tenant is not known")
        statement = statement.where(table.c.tenant == bindparam(PARAMETER))
    return statement
