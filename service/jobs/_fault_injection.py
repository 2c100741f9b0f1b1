"""Named points at which a test can kill the service, as ``kill -9`` at the worst moment would.

``AUTOSBP_CRASH_AT=search:ended`` with ``AUTOSBP_TESTING=1`` kills the process when it reaches that point. ``POINTS``
lists a job's points in order.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from autosbp.errors import InputError

POINTS = (
    "accepted",  # the row is committed, no worker has claimed it
    "taken",  # it is claimed and an attempt is counted
    "prepared",  # its inputs are read
    "started",  # the task is running in its process
    "ended",  # the task has ended, and its outcome is in a file
    "stored",  # the final state is committed, and the file still exists
)

ReachPoint = Callable[[str, str], None]
"""``reach(kind, point)``, called at each point."""


def make_crash_hook(wanted: str | None) -> ReachPoint:
    """Return a function that kills the process at ``KIND:POINT``, or that does nothing if ``wanted`` is None.

    Raises ``InputError`` for an unknown point.
    """
    if wanted is None:
        return lambda _kind, _point: None
    at_kind, _, at_point = wanted.partition(":")
    if at_point not in POINTS:
        raise InputError("crash_at", wanted, f"expected KIND:POINT with a point of {', '.join(POINTS)}")

    def reach(kind: str, point: str) -> None:
        if (kind, point) == (at_kind, at_point):
            os.kill(os.getpid(), signal.SIGKILL)

    return reach
