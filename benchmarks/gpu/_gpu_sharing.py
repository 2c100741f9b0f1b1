"""Run a rank script with several NCCL ranks on one GPU: ``python -m benchmarks.gpu._gpu_sharing MODULE ARGUMENTS...``.

NCCL refuses two ranks of one host on one GPU. Each rank here claims to be a host of its own (``NCCL_HOSTID``), so they
communicate over sockets, as nodes do; torch finds the GPU at the same index in each.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from autosbp.launch.local import RankOutcome, run_ranks


def launch(
    module: str,
    arguments: Sequence[str],
    num_ranks: int,
    log_path: Path,
    *,
    timeout_s: float,
    poll: Callable[[], bool] | None = None,
) -> RankOutcome:
    """``Launch`` function for ranks that share the first GPU."""
    return run_ranks(__name__, [module, *arguments], num_ranks, log_path, timeout_s=timeout_s, poll=poll)


def main() -> None:
    os.environ.update(
        LOCAL_RANK="0", LOCAL_WORLD_SIZE="1", NCCL_HOSTID=f"rank-{os.environ['RANK']}", NCCL_IB_DISABLE="1"
    )
    module = sys.argv[1]
    sys.argv = [module, *sys.argv[2:]]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
