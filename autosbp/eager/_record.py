"""What this process sends and receives, for those who listen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from autosbp.executor.runtime import Issued

_listeners: list[list[Issued]] = []


class Announcements(list[Issued]):
    """In the place of a list of all that was ever issued: hands each record on and keeps none."""

    def append(self, call: Issued) -> None:
        for listener in _listeners:
            listener.append(call)


@contextmanager
def recording() -> Iterator[list[Issued]]:
    """Within, the list grows by each collective and message that this process takes part in, forward and backward."""
    calls: list[Issued] = []
    _listeners.append(calls)
    try:
        yield calls
    finally:
        _listeners[:] = [each for each in _listeners if each is not calls]
