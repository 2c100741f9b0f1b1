"""What every table shares: naming, UTC times, tenants, and the ``(created_at, id)`` order that lists are paged by.

A resource's key is ``(id, tenant)``: ids of content are hashes of it, so two tenants that store the same content have the
same id and each a row of its own. References between resources hold the tenant too, so that none can cross.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

from sqlalchemy import (
    JSON,
    BindParameter,
    DateTime,
    Double,
    ForeignKeyConstraint,
    Index,
    MetaData,
    String,
    Table,
    bindparam,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.schema import SchemaItem
from sqlalchemy.types import TypeDecorator

_NAMES = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s",
    "pk": "pk_%(table_name)s",
}
DEFAULT_TENANT = "default"
NO_TENANT = ""
"""Whose calls of strangers are in the audit log: no key is of it."""
"""Whose everything is where no keys are needed."""


def now() -> datetime:
    """The present moment in UTC."""
    return datetime.now(UTC)


class UtcDateTime(TypeDecorator[datetime]):
    """A moment in UTC, also in databases that do not keep time zones."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        """Put the zone back where the database dropped it."""
        if value is None or value.tzinfo is UTC:
            return value
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Store the moment in UTC; SQLite gets it without the zone."""
        if value is None:
            return None
        value = value.astimezone(UTC)
        return value.replace(tzinfo=None) if dialect.name == "sqlite" else value


class Base(DeclarativeBase):
    """Base of every table. A tenant's session sees and writes no row of another tenant (``service.db``)."""

    metadata = MetaData(naming_convention=_NAMES)
    type_annotation_map = {dict[str, Any]: JSON(none_as_null=True), datetime: UtcDateTime, float: Double}

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    tenant: Mapped[str] = mapped_column(String(64), primary_key=True)
    created_at: Mapped[datetime] = mapped_column(default=now)


def table_of(kind: type[Base]) -> Table:
    """The table of a class, for statements without the ORM."""
    return cast("Table", kind.__table__)


def bound(table: Table, prefix: str, *names: str) -> dict[str, BindParameter[Any]]:
    """Values of these columns, or of all, for a statement: each is a parameter of its column's name behind ``prefix``."""
    columns = [table.c[name] for name in names] if names else list(table.c)
    return {each.name: bindparam(f"{prefix}{each.name}", type_=each.type) for each in columns}


def refers(column: str, table: str) -> ForeignKeyConstraint:
    """A reference to a row of the same tenant."""
    return ForeignKeyConstraint([column, "tenant"], [f"{table}.id", f"{table}.tenant"])


def listed(*filters: str) -> tuple[SchemaItem, ...]:
    """Indexes of a table that is listed newest first, as a whole and by each of ``filters``."""
    order = ("created_at", "id")
    return (Index(None, "tenant", *order), *(Index(None, "tenant", name, *order) for name in filters))
