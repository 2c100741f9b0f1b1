"""Processes of this machine: told apart by id and start time, as an id alone is used again, and kept on their cores."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

_START_FIELD = 18  # of /proc/PID/stat, counted from the one behind the state


def start_ticks(pid: int) -> int | None:
    """When the process started, in clock ticks since boot; None where it has ended, even if nobody waited for it."""
    with suppress(OSError):
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if state in "ZX" else int(fields[_START_FIELD])
    return None


def keep_to_cores(rank: int, num_ranks: int) -> None:
    """Bind this process, one of ``num_ranks`` alike that share its cores, to its part of them.

    Where there are fewer cores than ranks, they share each evenly. Left to itself, the kernel runs three of four ranks
    on one of two cores for a while, and all the others wait for these. Does nothing where there is no such call.
    """
    if not hasattr(os, "sched_setaffinity"):
        return
    cores = sorted(os.sched_getaffinity(0))
    part = len(cores) // num_ranks
    os.sched_setaffinity(0, cores[rank * part : (rank + 1) * part] or [cores[rank % len(cores)]])


def end_rank() -> NoReturn:
    """The last call of a rank's script: meet the other ranks, leave the process groups, end the process.

    Without taking the interpreter down: threads of Gloo may still hold tensors, and one that lets go of a tensor while
    the interpreter goes ends the whole process with SIGABRT (pytorch/pytorch#179291).
    """
    import torch.distributed as dist

    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
