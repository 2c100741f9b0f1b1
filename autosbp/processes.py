"""Processes of this machine, told apart by id and start time: an id alone is used again."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

_START_FIELD = 18  # of /proc/PID/stat, counted from the one behind the state


def start_ticks(pid: int) -> int | None:
    """When the process started, in clock ticks since boot; None where it has ended, even if nobody waited for it."""
    with suppress(OSError):
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if state in "ZX" else int(fields[_START_FIELD])
    return None
