"""Database access from the event loop for a database server: other requests go on while a statement waits.

Synchronous code runs unchanged in a greenlet, as in SQLAlchemy's asyncio sessions. A thread per statement would wait
longer for the GIL than the statement takes.

Code run this way must not hold a lock while it waits that another request on the same loop might need. It opens one
session at a time, because there are fewer connections than requests.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, TypeVar

from sqlalchemy.engine import URL
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.util import greenlet_spawn

Result = TypeVar("Result")
_READ_POOL_SIZE, _WRITE_POOL_SIZE = 6, 8
"""Maximum statements in flight at the server, for reading and for writing; further ones queue for a connection.

More would not finish sooner. Writes wait for the disk, so they have a pool of their own and do not delay reads.
"""
_IN_ASYNC_RUN: ContextVar[bool] = ContextVar("is_awaited", default=False)


class AsyncDatabase:
    """Two engines on one event loop, ``reading`` and ``writing``, for code that ``run`` executes.

    Args:
        url: the PostgreSQL URL.
        options: engine options; they must select autocommit, so that connections open no transactions.
    """

    def __init__(self, url: URL, options: dict[str, Any]) -> None:
        given = {
            **options,
            "pool_use_lifo": True,  # reuses few connections, whose statements the server has prepared
            "pool_reset_on_return": None,
        }
        here = url.set(drivername="postgresql+psycopg_async")
        self._engines = [
            create_async_engine(here, **{**given, "pool_size": size}) for size in (_READ_POOL_SIZE, _WRITE_POOL_SIZE)
        ]
        self.reading, self.writing = (each.sync_engine for each in self._engines)

    async def run(self, work: Callable[..., Result], *arguments: Any, **named: Any) -> Result:
        """Run ``work`` and return its result; its statements do not block the event loop."""

        def marked() -> Result:
            token = _IN_ASYNC_RUN.set(True)
            try:
                return work(*arguments, **named)
            finally:
                _IN_ASYNC_RUN.reset(token)

        return await greenlet_spawn(marked)

    async def close(self) -> None:
        """Close every connection; call it on the loop that used them."""
        for engine in self._engines:
            await engine.dispose()


def in_async_run() -> bool:
    """Whether the calling code runs inside ``AsyncDatabase.run``."""
    return _IN_ASYNC_RUN.get()
