"""What ranks do in the tests of the emulated cluster: ``python -m tests.testing.ranks WHAT [FILE]``."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from autosbp.utils.processes import exit_rank

NUM_BYTES = 4 << 20
REPEATS = 7


def times(path: str) -> None:
    """Medians of an all-reduce of NUM_BYTES: by one group across nodes, two of them at once, groups inside nodes."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    across = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    inside = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    data = torch.zeros(NUM_BYTES // 4)

    def seconds(group: dist.ProcessGroup | None) -> float:
        taken = []
        for _ in range(REPEATS + 1):
            dist.barrier()
            started = time.perf_counter()
            if group is not None:
                dist.all_reduce(data, group=group)
            taken.append(time.perf_counter() - started)
        return median(taken[1:])

    found = {
        "one across": seconds(across[0] if rank in (0, 2) else None),
        "two across": seconds(across[rank % 2]),
        "inside": seconds(inside[rank // 2]),
        "all": seconds(dist.group.WORLD),
    }
    if rank == 0:
        Path(path).write_text(json.dumps(found))
    exit_rank()


def fail(later_s: str) -> None:
    """Rank 2 fails for a reason of its own; the others later, for its sake."""
    time.sleep(0.0 if os.environ["RANK"] == "2" else float(later_s or 0.3))
    raise ValueError("the root cause" if os.environ["RANK"] == "2" else "connection closed by peer")


def be_killed(_: str) -> None:
    """The system ends rank 3 without a word."""
    if os.environ["RANK"] == "3":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def hang(folder: str) -> None:
    """Every rank says that it is there, and stays."""
    (Path(folder) / f"here{os.environ['RANK']}").write_text(str(os.getpid()))
    time.sleep(600)


WHAT: dict[str, Callable[[str], None]] = {"times": times, "fail": fail, "be_killed": be_killed, "hang": hang}

if __name__ == "__main__":
    WHAT[sys.argv[1]](sys.argv[2] if len(sys.argv) > 2 else "")
