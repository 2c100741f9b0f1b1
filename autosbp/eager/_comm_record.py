"""Record of this process's communication, for registered listeners."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from autosbp.executor.runtime import IssuedCollective

_listeners: list[list[IssuedCollective]] = []


class CommRecord(list[IssuedCollective]):
    """Replaces the runtime's list of issued collectives: passes each record to the listeners and stores none."""

    def append(self, call: IssuedCollective) -> None:
        for listener in _listeners:
            listener.append(call)


@contextmanager
def recording() -> Iterator[list[IssuedCollective]]:
    """Context whose list collects each collective and message of this process, forward and backward."""
    calls: list[IssuedCollective] = []
    _listeners.append(calls)
    try:
        yield calls
    finally:
        _listeners[:] = [each for each in _listeners if each is not calls]
