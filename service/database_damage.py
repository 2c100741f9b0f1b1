"""Detection of a damaged database: a full check at startup, and a quick one for health requests."""

from __future__ import annotations

import sqlite3

from sqlalchemy import ScalarSelect, inspect, literal, select
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from autosbp.errors import ServiceError
from autosbp.service.db import Database, one_line_message
from autosbp.service.models import Base

_REMEDY = "stop the service and restore a backup (autosbp admin restore, docs/how-to/monitor-and-repair.md#a-damaged-database)"
_SQLITE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_POSTGRESQL = ("42P01", "XX001", "XX002")  # undefined table; corrupted data; corrupted index


def upgrade(database: Database) -> None:
    """Migrate a database to the newest schema. A SQLite file is checked before anything is written to it.

    Raises:
        ServiceError: the database is damaged or lacks tables.
    """
    try:
        if database.is_sqlite:
            with database.engine.connect() as connection:
                found = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar_one()
            if found != "ok":
                raise ServiceError(_damage_message(str(found)))
        database.upgrade()
        with database.engine.connect() as connection:
            lacks = sorted(set(Base.metadata.tables) - set(inspect(connection).get_table_names()))
    except SQLAlchemyError as error:
        if is_damage(error):
            raise ServiceError(_damage_message(one_line_message(error))) from None
        raise
    if lacks:
        raise ServiceError(_damage_message(f"it lacks {', '.join(lacks)}"))


def find_damage(database: Database) -> str | None:
    """Describe what is wrong with the schema or the first page of a table, read from disk; None if nothing is.

    Raises ``SQLAlchemyError`` if the database does not answer.
    """
    try:
        with database.engine.connect() as connection:
            if database.is_sqlite:
                # drops cached pages, so that the check reads the disk
                connection.exec_driver_sql("PRAGMA shrink_memory")
            connection.execute(select(*(_first(name) for name in Base.metadata.tables)))
        return None if database.is_current() else "the database schema is outdated"
    except SQLAlchemyError as error:
        if is_damage(error):
            return _damage_message(one_line_message(error))
        raise


def _first(name: str) -> ScalarSelect[int]:
    return select(literal(1)).select_from(Base.metadata.tables[name]).limit(1).scalar_subquery()


def is_damage(error: BaseException) -> bool:
    """Whether an error says that the database is damaged or lacks a table."""
    if not isinstance(error, DBAPIError) or error.orig is None:
        return False
    if getattr(error.orig, "sqlstate", None) in _POSTGRESQL:
        return True
    code = getattr(error.orig, "sqlite_errorcode", 0)
    return code & 0xFF in _SQLITE or (code == sqlite3.SQLITE_ERROR and "no such table" in str(error.orig))


def _damage_message(found: str) -> str:
    return f"the database is corrupt ({found}): {_REMEDY}"
