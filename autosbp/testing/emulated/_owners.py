"""Namespace names of emulated clusters: each names its owner process, so that leftovers can be found.

The form is ``autosbp-emu-PID-START-SERIAL-ROLE``: the owner's process id and its start time in clock ticks since boot
(the id may be reused, the pair is not), the number of the cluster within the owner, and ``n0``, ``n1``, ... or
``switch``.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from autosbp.utils.processes import start_ticks

NAMESPACES = Path("/run/netns")
_NAME = re.compile(r"autosbp-emu-(\d+)-(\d+)-(\d+)-(?:n\d+|switch)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Owner:
    """One cluster of one process."""

    pid: int
    start_ticks: int
    serial: int

    def namespace(self, role: str) -> str:
        return f"autosbp-emu-{self.pid}-{self.start_ticks}-{self.serial}-{role}"

    @property
    def alive(self) -> bool:
        return start_ticks(self.pid) == self.start_ticks


def this_process(serial: int) -> Owner:
    """The owner of the ``serial``-th cluster of this process."""
    ticks = start_ticks(os.getpid())
    assert ticks is not None  # noqa: S101 - we run
    return Owner(os.getpid(), ticks, serial)


def owned_namespaces() -> list[tuple[str, Owner]]:
    """Every namespace of an emulated cluster on this machine, with its owner."""
    found = []
    names = sorted(os.listdir(NAMESPACES)) if NAMESPACES.is_dir() else []
    for name in names:
        match = _NAME.fullmatch(name)
        if match:
            found.append((name, Owner(*map(int, match.groups()))))
    return found
