"""Starts ranks on this machine with torchrun, watches them, and ends what it started (by process id, nothing else)."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_POLL_S = 0.1
_GRACE_S = 15.0
_LOG_TAIL_BYTES = 8000
MAX_LOCAL_RANKS = 64


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the ranks ended: ``reason`` is "" after success, else words such as "a rank failed"."""

    reason: str
    log_tail: str


def run_ranks(
    module: str,
    arguments: Sequence[str],
    num_ranks: int,
    log_path: Path,
    *,
    timeout_s: float,
    poll: Callable[[], bool] | None = None,
) -> Outcome:
    """Run ``python -m module arguments`` as ``num_ranks`` ranks on the loopback interface and wait for their end.

    Output goes to ``log_path``. ``OMP_NUM_THREADS`` is 1 unless the environment sets it. ``poll`` is called about ten
    times a second; when it returns False, or raises, or ``timeout_s`` passes, the ranks are ended. No process is left.
    """
    deadline = time.monotonic() + timeout_s
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes=1", f"--nproc-per-node={num_ranks}"),
        *("--master-addr=127.0.0.1", f"--master-port={free_port()}", "--local-addr=127.0.0.1", "--max-restarts=0"),
        *("-m", module, *arguments),
    ]
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=environment(),
            start_new_session=True,
        )
    reason = ""
    try:
        while process.poll() is None and not reason:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_POLL_S)
            if poll is not None and not poll():
                reason = "cancelled"
            elif time.monotonic() > deadline:
                reason = f"timed out after {timeout_s:g} s"
    finally:
        _end(process, module)
    if not reason and process.returncode != 0:
        reason = "a rank failed"
    return Outcome(reason, log_path.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace").strip())


def environment() -> dict[str, str]:
    """The caller's environment with this tree on the path and traffic kept to the loopback interface."""
    root = str(Path(__file__).resolve().parent.parent)
    paths = [root, os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else [root]
    forced = {"PYTHONPATH": os.pathsep.join(paths), "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
    return {"OMP_NUM_THREADS": "1", **os.environ, **forced}


def free_port() -> int:
    """A port of the loopback interface that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _end(process: subprocess.Popen[bytes], module: str) -> None:
    """Ask torchrun to stop its ranks; if it does not, end it and them by process id."""
    if process.poll() is not None:
        return
    ranks = _children(process.pid)
    process.terminate()
    try:
        process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pid in ranks:
        with suppress(OSError):
            if module.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)


def _children(parent: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, IndexError, ValueError):
            if int(path.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(path.parent.name))
    return found
