"""Killing processes together with everything they started."""

from __future__ import annotations

import contextlib
import os
import signal
from functools import cache
from pathlib import Path

WORKER_VARIABLE = "AUTOSBP_JOBS_OF"
"""Environment variable of every process that works for a worker; its value is the worker's id."""
OUTLIVES_SERVICE = {"AUTOSBP_OUTLIVES": "1"}
"""Environment of processes that must outlive the service with all that they start; this module spares them."""
_ROUNDS = 100


def descendants(pid: int) -> list[int]:
    """Pids of all living descendants of ``pid``, from ``/proc``; empty without ``/proc``."""
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
    """Kill the descendants of ``pid``, and ``pid`` itself unless ``include_self`` is False.

    It also finds processes that changed their process group or were started meanwhile.
    """
    for _ in range(_ROUNDS):
        doomed = [each for each in descendants(pid) if not _environment_entries(OUTLIVES_SERVICE) <= _environment(each)]
        if not doomed:
            break
        _kill(doomed)
    if include_self:
        _kill([pid])


def kill_tagged(worker: str) -> int:
    """Kill every process on this machine that works for a worker, whatever its parent, and return their number."""
    wanted, spared, killed = (
        _environment_entries({WORKER_VARIABLE: worker}),
        _environment_entries(OUTLIVES_SERVICE),
        set[int](),
    )
    for _ in range(_ROUNDS):
        found = ((pid, _environment(pid)) for pid in _all_other_pids())
        doomed = [pid for pid, marks in found if wanted <= marks and not spared <= marks]
        if not doomed:
            break
        killed.update(doomed)  # a set: a process that is still dying is found again
        _kill(doomed)
    return len(killed)


@cache
def pid_scope() -> str:
    """Identifies the scope in which process ids are unique: boot of this machine and PID namespace."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.stat('/proc/self/ns/pid').st_ino}"
    return os.uname().nodename[:64]


def _all_other_pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").glob("[0-9]*") if int(entry.name) != os.getpid()]


def _environment(pid: int) -> set[bytes]:
    try:
        return set(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
    except OSError:
        return set()


def _environment_entries(variables: dict[str, str]) -> set[bytes]:
    return {f"{name}={value}".encode() for name, value in variables.items()}


def _kill(pids: list[int]) -> None:
    """Stop all before killing any, so that none takes another's death for a failure of the job and reports it."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
