"""Start of a training run's ranks on this machine, by torch's elastic launcher, as ``torchrun --standalone`` does."""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

import torch
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from autosbp.errors import InputError, TrialError
from autosbp.launch.local import OWNER_VARIABLE, log_tail, rank_environment
from autosbp.plan.plan import Plan
from autosbp.utils.forking import die_with_parent
from autosbp.utils.processes import bind_to_cores

_LOOPBACK = "127.0.0.1"


def run_ranks_here(arguments: Sequence[str], num_ranks: int) -> int:
    """Run ``python -m autosbp ARGUMENTS`` as ``num_ranks`` ranks and wait for their end; rank 0's output is shown.

    If a rank fails, the others are ended. All ranks end with this process.

    Returns:
        0, or the exit code of the first rank that failed.

    Raises:
        TrialError: a rank was killed, or failed with an exit code that autosbp does not define.
    """
    os.environ.update(rank_environment(), **{OWNER_VARIABLE: str(os.getpid())})
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    logging.getLogger("torch.distributed.launcher").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="autosbp-train-") as folder:
        quiet = dict.fromkeys(range(1, num_ranks), Std.ALL)
        config = LaunchConfig(
            1,
            1,
            num_ranks,
            logs_specs=DefaultLogsSpecs(folder, redirects=quiet),
            run_id=str(uuid4()),
            rdzv_backend="c10d",
            rdzv_endpoint=f"{_LOOPBACK}:0",
            local_addr=_LOOPBACK,
            max_restarts=0,
        )
        try:
            elastic_launch(config, sys.executable)("-m", "autosbp", *arguments)
        except SignalException as ended:
            return 128 + int(ended.sigval)
        except ChildFailedError as failed:
            return _exit_code(failed.get_first_failure(), Path(folder))
    return 0


def _exit_code(failed: tuple[int, ProcessFailure], folder: Path) -> int:
    """Exit code of a rank that reported an error itself; the message is printed here unless it is rank 0's."""
    rank, failure = failed
    said = next((text for path in sorted(folder.rglob(f"{rank}/stderr.log")) if (text := log_tail(path))), "")
    if failure.exitcode == InputError.exit_code:
        sys.stderr.write(f"{said}\n" if said else "")
        return failure.exitcode
    how = f"was killed by {signal.Signals(-failure.exitcode).name}" if failure.exitcode < 0 else "failed"
    raise TrialError(f"rank {rank} {how}\n{said}".strip())


def check_devices_here(plan: Plan) -> None:
    """Raise ``InputError`` if this machine has too few CUDA devices for the plan's ranks, one each."""
    needed, found = plan.strategy.num_devices, torch.cuda.device_count()
    if plan.cluster.device.kind == "cuda" and found < needed:
        limit = f"the plan needs {needed} CUDA devices, this machine has {found}: start it with torchrun on every node"
        raise InputError("plan", plan.cluster.name, limit)


def prepare_rank(plan: Plan) -> None:
    """Prepare a rank: it ends with the process that called ``run_ranks_here``, and shares the cores with other ranks.

    A stop signal ends it immediately, even while it waits for other ranks.
    """
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    owner = os.environ.pop(OWNER_VARIABLE, None)
    if owner is not None:
        die_with_parent(int(owner))
    if plan.cluster.device.kind != "cuda":
        bind_to_cores(int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"]))
