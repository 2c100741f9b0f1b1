"""Processes of this machine: identify them by id and start time, since ids are reused, and bind them to cores."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

_START_FIELD = 18  # field of /proc/PID/stat, counted from the one after the state


def start_ticks(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot; None if it has ended, even if nobody has reaped it."""
    with suppress(OSError):
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if state in "ZX" else int(fields[_START_FIELD])
    return None


def find_by_namespace_pid(pid: int, *words: str) -> int | None:
    """Find a process by its id in its own namespace and words of its command line.

    In a sandbox a process has another id than outside.

    Returns:
        Its id in this namespace; None if there is no such process.
    """
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, StopIteration):
            ids = next(line for line in (folder / "status").read_text().splitlines() if line.startswith("NSpid:"))
            command = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if int(ids.split()[-1]) == pid and set(words) <= set(command):
                return int(folder.name)
    return None


def bind_to_cores(rank: int, num_ranks: int) -> None:
    """Bind this process, one of ``num_ranks`` equal ranks on its cores, to its part of them.

    With fewer cores than ranks, ranks share cores evenly. Unbound, the kernel may run three of four ranks on one of two
    cores for a while, and all the others wait for these. Does nothing on systems without CPU affinity.
    """
    if not hasattr(os, "sched_setaffinity"):
        return
    cores = sorted(os.sched_getaffinity(0))
    part = len(cores) // num_ranks
    os.sched_setaffinity(0, cores[rank * part : (rank + 1) * part] or [cores[rank % len(cores)]])


def exit_rank() -> NoReturn:
    """Finish a rank's script: wait for the other ranks, destroy the process groups, exit.

    It skips the interpreter's shutdown: threads of Gloo may still hold tensors, and one that releases a tensor during
    shutdown aborts the process with SIGABRT (pytorch/pytorch#179291).
    """
    import torch.distributed as dist

    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
