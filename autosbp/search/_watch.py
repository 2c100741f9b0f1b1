"""Who is told how the work on a plan goes, and may end it."""

from __future__ import annotations

import math
from collections.abc import Callable

Progress = Callable[[str, float], bool]
BASELINES, SEARCH, FRONT, FEWER = "baselines", "search", "front", "fewer devices"
_PLANS = (SEARCH, FRONT)
"""Parts of the work whose best strategy is one that a plan may have."""


class Watch:
    """Tells ``progress`` of a part of the work and the best step time that it has found (inf: none yet). Once that has
    returned False, ``stopped`` stays True, and nobody is told any more."""

    def __init__(self, progress: Progress | None) -> None:
        self.stopped = False
        self._progress = progress

    def tell(self, part: str, best_s: float) -> bool:
        """Whether to go on. Baselines, and plans on fewer devices, are not what was asked for: only their part is told."""
        if self._progress is not None and not self.stopped:
            self.stopped = not self._progress(part, best_s if part in _PLANS else math.inf)
        return not self.stopped
