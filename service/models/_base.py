"""Common parts of all tables: naming, UTC times, tenants, and the ``(created_at, id)`` order of paged lists.

The primary key is ``(id, tenant)``. Ids of content are hashes of it, so two tenants that store the same content have
the same id, each with a row of its own. Foreign keys include the tenant, so that no reference crosses tenants.
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
ID_DIGITS = 32
"""Number of hexadecimal digits in a new id (128 bits)."""
DEFAULT_TENANT = "default"
NO_TENANT = ""
"""Tenant of strangers' calls in the audit log; no key belongs to it. ``DEFAULT_TENANT`` owns all rows without keys."""


def now() -> datetime:
    """Current time in UTC."""
    return datetime.now(UTC)


class UtcDateTime(TypeDecorator[datetime]):
    """A column type for times in UTC, also in databases without time zones."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        """Add the time zone if the database dropped it."""
        if value is None or value.tzinfo is UTC:
            return value
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Store the time in UTC; SQLite gets it without the zone."""
        if value is None:
            return None
        value = value.astimezone(UTC)
        return value.replace(tzinfo=None) if dialect.name == "sqlite" else value


class Base(DeclarativeBase):
    """Base class of all tables. A tenant's session sees and writes no row of another tenant (``autosbp.service.tenancy``)."""

    metadata = MetaData(naming_convention=_NAMES)
    type_annotation_map = {dict[str, Any]: JSON(none_as_null=True), datetime: UtcDateTime, float: Double}

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    tenant: Mapped[str] = mapped_column(String(64), primary_key=True)
    created_at: Mapped[datetime] = mapped_column(default=now)


def table_of(kind: type[Base]) -> Table:
    """The table of a class, for statements without the ORM."""
    return cast("Table", kind.__table__)


def bind_parameters(table: Table, prefix: str, *names: str) -> dict[str, BindParameter[Any]]:
    """Bind parameters for these columns, or for all; each is named ``prefix`` + column name."""
    columns = [table.c[name] for name in names] if names else list(table.c)
    return {each.name: bindparam(f"{prefix}{each.name}", type_=each.type) for each in columns}


def content_id(prefix: str, content_hash: str) -> str:
    """Id of a resource named by its content's hash. Earlier releases used 16 digits."""
    return f"{prefix}-{content_hash[:ID_DIGITS]}"


def tenant_foreign_key(column: str, table: str) -> ForeignKeyConstraint:
    """A foreign key to a row of the same tenant."""
    return ForeignKeyConstraint([column, "tenant"], [f"{table}.id", f"{table}.tenant"])


def list_indexes(*filters: str) -> tuple[SchemaItem, ...]:
    """Indexes of a table that is listed newest first, unfiltered and by each of ``filters``."""
    order = ("created_at", "id")
    return (Index(None, "tenant", *order), *(Index(None, "tenant", name, *order) for name in filters))


def reference_indexes(*columns: str) -> tuple[SchemaItem, ...]:
    """Indexes of references that no list filters by; deleting the referenced row looks for them."""
    return tuple(Index(None, "tenant", name) for name in columns)
