"""Named moments at which a test can have the service die, as ``kill -9`` at the worst moment would.

``AUTOSBP_CRASH_AT=search:recorded`` with ``AUTOSBP_TESTING=1`` ends the process when it comes there. The moments of a job,
in their order: ``POINTS``.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from autosbp.errors import InputError

POINTS = (
    "accepted",  # its row is committed, nothing has queued it
    "enqueued",  # its workflow is queued
    "taken",  # its workflow has begun and taken the lease
    "prepared",  # an attempt is counted and its inputs are read
    "started",  # the task is running in its process
    "ended",  # the task has ended, its outcome is not recorded
    "recorded",  # the outcome is recorded, not stored
    "stored",  # the final state is committed, the workflow has not ended
)

Reach = Callable[[str, str], None]
"""``reach(kind, point)``: called at each moment."""


def crasher(wanted: str | None) -> Reach:
    """What ends the process at ``KIND:POINT``, or nothing without one; ``InputError``."""
    if wanted is None:
        return lambda _kind, _point: None
    at_kind, _, at_point = wanted.partition(":")
    if at_point not in POINTS:
        raise InputError("crash_at", wanted, f"KIND:POINT is expected, a point is one of {', '.join(POINTS)}")

    def reach(kind: str, point: str) -> None:
        if (kind, point) == (at_kind, at_point):
            os.kill(os.getpid(), signal.SIGKILL)

    return reach
