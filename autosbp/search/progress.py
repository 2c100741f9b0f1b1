"""Progress reports of planning, through a callback that may stop it."""

from __future__ import annotations

import math
from collections.abc import Callable

Progress = Callable[[str, float], bool]
BASELINES, SEARCH, FRONT, FEWER = "baselines", "search", "front", "fewer devices"
_PLANS = (SEARCH, FRONT)
"""Phases whose best strategy may become the plan."""


class ProgressReporter:
    """Calls ``progress`` with the current phase and its best step time in seconds (inf if none yet).

    Once ``progress`` has returned False, ``stopped`` stays True and no more calls are made.
    """

    def __init__(self, progress: Progress | None) -> None:
        self.stopped = False
        self._progress = progress

    def tell(self, part: str, best_s: float) -> bool:
        """Report, and return whether to continue. For baselines and fewer devices only the phase is reported."""
        if self._progress is not None and not self.stopped:
            self.stopped = not self._progress(part, best_s if part in _PLANS else math.inf)
        return not self.stopped
