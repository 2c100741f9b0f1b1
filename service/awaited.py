"""A server's database on the event loop: the code that reads or writes stays as it is, and while it waits for the server, other
requests go on. A thread for each statement would take longer to get its turn from the others than the statement itself.

Plain code runs in a greenlet, as SQLAlchemy's asyncio sessions have it run, and is awaited in its place. What is run must not
hold a lock while it waits, which another request on the same loop might want; and has one session open at a time, as there are
fewer connections than requests.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, TypeVar

from sqlalchemy.engine import URL
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.util import greenlet_spawn

Result = TypeVar("Result")
_READING, _WRITING = 6, 8
"""Statements that are with the server at once; more wait for one of these, in turn: it would be no sooner done with many. What
writes waits for a disk, and keeps no reads waiting with it."""
_IS_AWAITED: ContextVar[bool] = ContextVar("is_awaited", default=False)


class Awaited:
    """Two engines of one event loop; ``options`` are to give their connections no transactions. ``reading`` and ``writing``
    are for code that ``run`` runs."""

    def __init__(self, url: URL, options: dict[str, Any]) -> None:
        given = {
            **options,
            "pool_use_lifo": True,  # few connections then do it all, whose statements the server has prepared
            "pool_reset_on_return": None,
        }
        here = url.set(drivername="postgresql+psycopg_async")
        self._engines = [create_async_engine(here, **{**given, "pool_size": size}) for size in (_READING, _WRITING)]
        self.reading, self.writing = (each.sync_engine for each in self._engines)

    async def run(self, work: Callable[..., Result], *arguments: Any, **named: Any) -> Result:
        """What ``work`` returns; its statements do not hold up the loop."""

        def marked() -> Result:
            token = _IS_AWAITED.set(True)
            try:
                return work(*arguments, **named)
            finally:
                _IS_AWAITED.reset(token)

        return await greenlet_spawn(marked)

    async def close(self) -> None:
        """Close every connection; on the loop that has used them."""
        for engine in self._engines:
            await engine.dispose()


def is_here() -> bool:
    """Whether this is code that ``Awaited.run`` runs."""
    return _IS_AWAITED.get()
