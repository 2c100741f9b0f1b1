"""Progress of searches and jobs on standard error, and where the wall time of a command went."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from autosbp.cli._exit_codes import note
from autosbp.utils.formatting import seconds

if TYPE_CHECKING:
    from autosbp.client import Job

_IMPROVEMENT = 1e-3
"""Relative improvement of the best step time from which it is printed."""
_LEAST_PART_S = 0.05


class SearchProgress:
    """Prints the best step time of a search when it improves, the same for a library's search and a service's."""

    def __init__(self) -> None:
        self._best_s = math.inf

    def report(self, stage: str, best_s: float) -> bool:
        """Progress callback of the library; always continues."""
        if best_s < self._best_s * (1 - _IMPROVEMENT):
            note(f"{stage}: {seconds(best_s)} per step")
            self._best_s = best_s
        return True


class JobProgress:
    """Prints how a service's job goes: a search as the library's, other work by its steps."""

    def __init__(self) -> None:
        self._search, self._shown = SearchProgress(), ""

    def report(self, seen: Job) -> None:
        """Print what has changed."""
        best_s = seen.figures.get("best_step_time_s")
        if seen.state == "running" and best_s is not None:
            self._search.report(seen.message, best_s)
            return
        line = f"{seen.kind} {seen.state}"
        if seen.message and seen.message != seen.state:
            done = "" if seen.progress is None or seen.is_final else f"[{100 * seen.progress:.0f} %] "
            line = f"{line}: {done}{seen.message}"
        if line != self._shown:
            note(line)
            self._shown = line


class WallTime:
    """Wall time of a command by its parts, in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began_s = self._last_s = clock()
        self._parts: dict[str, float] = {}

    def end(self, part: str) -> None:
        """Count the time since the previous call as ``part``."""
        at_s = self._clock()
        self._parts[part] = self._parts.get(part, 0.0) + at_s - self._last_s
        self._last_s = at_s

    def explanation(self, limit_s: float) -> str | None:
        """A sentence about where the time went; None within the time limit."""
        spent_s = self._last_s - self._began_s
        if spent_s <= limit_s:
            return None
        parts = ", ".join(f"{part} {each_s:.1f} s" for part, each_s in self._parts.items() if each_s >= _LEAST_PART_S)
        return f"took {spent_s:.1f} s ({parts}): --time-limit {limit_s:g} s ends the search, after what has begun"
