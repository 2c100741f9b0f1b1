"""Ending a process together with everything that it started."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path


def descendants(pid: int) -> list[int]:
    """Pids of the processes started by ``pid`` and by its children, from ``/proc``; empty where there is none."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            after_name = entry.read_text(errors="replace").rpartition(")")[2].split()
            children.setdefault(int(after_name[1]), []).append(int(entry.parent.name))
    found, frontier = [], [pid]
    while frontier:
        frontier = [child for parent in frontier for child in children.get(parent, [])]
        found += frontier
    return found


def kill_tree(pid: int, include_self: bool = True) -> None:
    """Kill ``pid`` (unless told otherwise) and its descendants, wherever they moved their process group."""
    doomed = descendants(pid)
    for victim in ([pid] if include_self else []) + doomed:
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
