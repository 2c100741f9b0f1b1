"""Ending processes together with everything that they started."""

from __future__ import annotations

import contextlib
import os
import signal
from functools import cache
from pathlib import Path

TAG = "AUTOSBP_JOBS_OF"
"""The environment variable that every process has which works for a worker; its value is the worker's id."""
OUTLIVES = {"AUTOSBP_OUTLIVES": "1"}
"""The environment of processes that are meant to outlive the service, with all that they start: they are not killed here."""
_ROUNDS = 100


def descendants(pid: int) -> list[int]:
    """Pids of the living processes started by ``pid`` and by its children, from ``/proc``; empty where there is none."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent = entry.read_text(errors="replace").rpartition(")")[2].split()[:2]
            if state != "Z":
                children.setdefault(int(parent), []).append(int(entry.parent.name))
    found, frontier = [], [pid]
    while frontier:
        frontier = [child for parent in frontier for child in children.get(parent, [])]
        found += frontier
    return found


def kill_tree(pid: int, include_self: bool = True) -> None:
    """Kill the descendants of ``pid``, wherever they moved their process group and whatever they start meanwhile, and then
    itself, unless told otherwise."""
    for _ in range(_ROUNDS):
        doomed = [each for each in descendants(pid) if not _marks(OUTLIVES) <= _environment(each)]
        if not doomed:
            break
        _kill(doomed)
    if include_self:
        _kill([pid])


def kill_tagged(worker: str) -> int:
    """Kill every process on this machine that works for a worker, whoever its parent is now; how many there were."""
    wanted, spared, killed = _marks({TAG: worker}), _marks(OUTLIVES), set[int]()
    for _ in range(_ROUNDS):
        found = ((pid, _environment(pid)) for pid in _of_everybody())
        doomed = [pid for pid, marks in found if wanted <= marks and not spared <= marks]
        if not doomed:
            break
        killed.update(doomed)  # one that still dies is found again: it is one all the same
        _kill(doomed)
    return len(killed)


@cache
def machine() -> str:
    """Where a process id means one process: this boot of this machine, in this namespace."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.stat('/proc/self/ns/pid').st_ino}"
    return os.uname().nodename[:64]


def _of_everybody() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").glob("[0-9]*") if int(entry.name) != os.getpid()]


def _environment(pid: int) -> set[bytes]:
    try:
        return set(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
    except OSError:
        return set()


def _marks(variables: dict[str, str]) -> set[bytes]:
    return {f"{name}={value}".encode() for name, value in variables.items()}


def _kill(pids: list[int]) -> None:
    """Stop all before any of them dies: none may take another's death for a failure of the job, and write it down."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
