"""Turns on the machine: a measurement has it for itself, so that no search disturbs what is measured."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from service.jobs._base import Interrupted

_LOOK_S = 0.2


class Turns:
    """Jobs of one lane run beside each other; those of the two lanes do not, unless ``alone`` is False. A measurement that
    waits lets no further search begin. Thread-safe."""

    def __init__(self, alone: bool) -> None:
        self._alone = alone
        self._running = {"plan": 0, "measure": 0}
        self._waiting = 0
        self._changed = threading.Condition()

    @contextmanager
    def turn(self, lane: str, stopping: Callable[[], bool]) -> Iterator[None]:
        """Wait for a turn and have it for the block; ``Interrupted`` if ``stopping`` meanwhile."""
        with self._changed:
            self._waiting += lane == "measure"
            try:
                while self._alone and not self._free(lane):
                    if stopping():
                        raise Interrupted("the service stops")
                    self._changed.wait(_LOOK_S)
            finally:
                self._waiting -= lane == "measure"
            self._running[lane] += 1
        try:
            yield
        finally:
            with self._changed:
                self._running[lane] -= 1
                self._changed.notify_all()

    def _free(self, lane: str) -> bool:
        if lane == "measure":
            return not self._running["plan"]
        return not self._running["measure"] and not self._waiting
