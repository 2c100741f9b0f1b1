"""Lock on the machine: measurements run alone, so that no search disturbs the timings."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from autosbp.service.jobs._base import Interrupted

_POLL_S = 0.2


class MachineLock:
    """Excludes jobs of different lanes from each other; jobs of one lane run concurrently. Thread-safe.

    A waiting measurement keeps further searches from starting. With ``alone`` False there is no exclusion.
    """

    def __init__(self, alone: bool) -> None:
        self._excludes_other_lane = alone
        self._running = {"plan": 0, "measure": 0}
        self._waiting = 0
        self._changed = threading.Condition()

    @contextmanager
    def acquire(self, lane: str, idle: Callable[[], bool]) -> Iterator[None]:
        """Hold the machine for the block; raise ``Interrupted`` if ``idle()`` becomes true while waiting."""
        with self._changed:
            self._waiting += lane == "measure"
            try:
                while self._excludes_other_lane and not self._is_free_for(lane):
                    if idle():
                        raise Interrupted("the turn was released")
                    self._changed.wait(_POLL_S)
            finally:
                self._waiting -= lane == "measure"
            self._running[lane] += 1
        try:
            yield
        finally:
            with self._changed:
                self._running[lane] -= 1
                self._changed.notify_all()

    def _is_free_for(self, lane: str) -> bool:
        if lane == "measure":
            return not self._running["plan"]
        return not self._running["measure"] and not self._waiting
