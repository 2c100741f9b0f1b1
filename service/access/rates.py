"""How often somebody may call: token buckets in this process."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable

_MOST_NAMES = 10_000


class Rates:
    """A bucket of ``burst`` calls for each name, which fills by ``per_s`` calls a second. Thread-safe.

    A name that was not seen for long has a full bucket, so the least recently seen ones are forgotten past 10,000.
    """

    def __init__(self, per_s: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_s, self._burst, self._clock = per_s, burst, clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, name: str) -> float:
        """Take one call: 0, or the seconds until there is one."""
        with self._lock:
            now = self._clock()
            left, seen = self._buckets.pop(name, (self._burst, now))
            left = min(self._burst, left + (now - seen) * self._per_s)
            wait_s = 0.0 if left >= 1 else (1 - left) / self._per_s
            self._buckets[name] = (left if wait_s else left - 1, now)
            if len(self._buckets) > _MOST_NAMES:
                self._buckets.popitem(last=False)
            return wait_s

    def empty(self, name: str) -> float:
        """The seconds until there is a call for a name, without taking one; 0 if there is."""
        with self._lock:
            left, seen = self._buckets.get(name, (self._burst, 0.0))
            left = min(self._burst, left + (self._clock() - seen) * self._per_s)
            return 0.0 if left >= 1 else (1 - left) / self._per_s
