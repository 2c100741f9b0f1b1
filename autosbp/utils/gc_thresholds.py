"""Fewer garbage collections while planning.

Search and cost model create and drop many small objects, nearly all of them without reference cycles. With the default
thresholds an eighth of the planning time goes to scanning the remaining objects for cycles.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

THRESHOLDS = (100_000, 20, 100)
"""Arguments of ``gc.set_threshold``: cycles that accumulate in between take tens of megabytes at most."""
_lock = threading.Lock()
_inside: list[tuple[int, int, int]] = []


@contextmanager
def raised_gc_thresholds() -> Iterator[None]:
    """Raise the collection thresholds for all threads; higher thresholds, or 0 (never), stay."""
    with _lock:
        before = gc.get_threshold()
        _inside.append(before)
        if 0 < before[0] < THRESHOLDS[0]:
            gc.set_threshold(*THRESHOLDS)
    try:
        yield
    finally:
        with _lock:
            first = _inside[0]
            _inside.pop()
            if not _inside:
                gc.set_threshold(*first)
