"""Fewer looks for unreachable cycles while a plan is made.

Search and cost model make and drop many small objects, nearly all of them outside cycles: by default an eighth of a plan's
time goes to looking for cycles among those that stay.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

THRESHOLDS = (100_000, 20, 100)
"""Of ``gc.set_threshold``: what is in cycles by then takes tens of megabytes at most."""
_lock = threading.Lock()
_inside: list[tuple[int, int, int]] = []


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Within, in any thread, cycles are looked for seldom; thresholds that are higher, or 0 (never), stay."""
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
