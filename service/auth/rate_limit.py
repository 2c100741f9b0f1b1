"""Rate limits: token buckets in this process."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable

_MAX_BUCKETS = 10_000


class RateLimit:
    """A token bucket per name, with ``burst`` tokens at most, refilled by ``per_s`` a second. Thread-safe.

    The bucket of a name that was not seen for long is full, so beyond 10,000 names the least recently seen are dropped.
    """

    def __init__(self, per_s: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_s, self._burst, self._clock = per_s, burst, clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, name: str) -> float:
        """Take one token and return 0, or return the seconds until one is available."""
        with self._lock:
            now = self._clock()
            left, seen = self._buckets.pop(name, (self._burst, now))
            left = min(self._burst, left + (now - seen) * self._per_s)
            wait_s = 0.0 if left >= 1 else (1 - left) / self._per_s
            self._buckets[name] = (left if wait_s else left - 1, now)
            if len(self._buckets) > _MAX_BUCKETS:
                self._buckets.popitem(last=False)
            return wait_s
