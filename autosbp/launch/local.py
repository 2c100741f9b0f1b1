"""Starts ranks on this machine, watches them, and ends what it started (by process id, nothing else)."""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from autosbp.errors import InputError
from autosbp.sandbox import Sandbox
from autosbp.sandbox.capped_log import capped_log
from autosbp.sandbox.regular_files import read_end

_log = logging.getLogger(__name__)
_POLL_S = 0.1
_GRACE_S = 15.0
_SIOCGIFADDR = 0x8915  # from linux/sockios.h: get the IPv4 address of an interface
_DEVICE_QUERY_TIMEOUT_S = 120.0
CANCELLED = "cancelled"
"""``RankOutcome.reason`` of ranks that ``poll`` ended."""
_LOG_TAIL_BYTES = 8000
OWNER_VARIABLE = "AUTOSBP_OWNER"
"""Environment variable with the id of the process without which ``autosbp.launch.fork_server`` ends its ranks."""
MAX_LOCAL_RANKS = 64
LOOPBACK = "lo"


@dataclass(frozen=True, slots=True)
class RankOutcome:
    """How the ranks ended: ``reason`` is "" after success, else words such as "a rank failed"."""

    reason: str
    log_tail: str


class Launch(Protocol):
    """A way to start ranks: ``run_ranks`` on this machine, ``EmulatedCluster.launch`` on several nodes."""

    def __call__(
        self,
        module: str,
        arguments: Sequence[str],
        num_ranks: int,
        log_path: Path,
        *,
        timeout_s: float,
        poll: Callable[[], bool] | None = None,
    ) -> RankOutcome:
        """Run ``python -m module arguments`` as ``num_ranks`` ranks under torchrun's environment; wait for their end.

        The output of rank 0's node goes to ``log_path``. ``poll`` is called about ten times a second; the ranks are
        ended when it returns False or raises, or when ``timeout_s`` passes. All ranks can read and write every path in
        ``arguments``. No process is left.
        """


def run_ranks(
    module: str,
    arguments: Sequence[str],
    num_ranks: int,
    log_path: Path,
    *,
    timeout_s: float,
    poll: Callable[[], bool] | None = None,
    interface: str = LOOPBACK,
    sandbox: Sandbox | None = None,
) -> RankOutcome:
    """The ``Launch`` of this machine: the ranks of one ``autosbp.launch.fork_server``, connected over ``interface``.

    ``OMP_NUM_THREADS`` is 1 unless the environment sets it. Ranks end with this process, even if it is killed.

    Args:
        sandbox: confines ranks that run code from others; they may write to the folder of ``log_path`` only. None:
            ranks have this process's rights.

    Raises:
        InputError: the interface does not exist; nothing has been started.
    """
    check_interface(interface)
    deadline = time.monotonic() + timeout_s
    command = [sys.executable, "-u", "-m", "autosbp.launch.fork_server", str(num_ranks), module, *arguments]
    env = rank_environment(interface)
    with ExitStack() as made:
        if sandbox is not None:
            confined = sandbox.confined(command, log_path.parent.resolve(), env, own_network=interface == LOOPBACK)
            command, env = made.enter_context(confined)
        if sandbox is None or sandbox.resolved_way() != "bubblewrap":  # bubblewrap ends the ranks itself
            env = {**env, OWNER_VARIABLE: str(os.getpid())}
        log = made.enter_context(capped_log(log_path) if sandbox is None else capped_log(log_path, sandbox.log_bytes))
        process = start(command, log, env)
        _log.info("started %d ranks of %s as process %d, log %s", num_ranks, module, process.pid, log_path)
        reason = _wait_for_end(process, module, deadline, timeout_s, poll)
    code = process.returncode if sandbox is None else sandbox.exit_code(process.returncode)
    if not reason and code != 0:
        # the ranks end with their parent
        reason = f"their parent process was killed by {signal.Signals(-code).name}" if code < 0 else "a rank failed"
    _log.info("the ranks of %s ended: %s", module, reason or "success")
    return RankOutcome(reason, log_tail(log_path))


def _wait_for_end(
    process: subprocess.Popen[bytes],
    module: str,
    deadline: float,
    timeout_s: float,
    poll: Callable[[], bool] | None,
) -> str:
    """Wait for the process or end it; returns why it was ended, or ""."""
    reason = ""
    try:
        while process.poll() is None and not reason:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_POLL_S)
            if poll is not None and not poll():
                reason = CANCELLED
            elif time.monotonic() > deadline:
                reason = f"timed out after {timeout_s:g} s"
    finally:
        _stop_process(process, module)
    return reason


def torchrun_command(
    module: str,
    arguments: Sequence[str],
    ranks_per_node: int,
    *,
    master: tuple[str, int],
    local_address: str,
    num_nodes: int = 1,
    node: int = 0,
) -> list[str]:
    """torchrun for one node with a static rendezvous at ``master`` (address and port), which node 0 serves."""
    return [
        *(sys.executable, "-m", "torch.distributed.run"),
        *(f"--nnodes={num_nodes}", f"--node-rank={node}", f"--nproc-per-node={ranks_per_node}"),
        *(f"--master-addr={master[0]}", f"--master-port={master[1]}", f"--local-addr={local_address}"),
        *("--max-restarts=0", "-m", module, *arguments),
    ]


def start(command: Sequence[str], log: int, env: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start a command in its own session; its output goes to the descriptor ``log``."""
    return subprocess.Popen(
        command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=env, start_new_session=True
    )


def log_tail(log_path: Path) -> str:
    """The end of a log; "" if the file does not exist."""
    with suppress(OSError):
        return read_end(log_path, _LOG_TAIL_BYTES).decode(errors="replace").strip()
    return ""


def rank_environment(interface: str = LOOPBACK) -> dict[str, str]:
    """The caller's environment with this tree on the path and traffic restricted to ``interface``."""
    root = str(Path(__file__).resolve().parents[2])
    paths = [root, os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else [root]
    forced = {"PYTHONPATH": os.pathsep.join(paths), "GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface}
    return {"OMP_NUM_THREADS": "1", **os.environ, **forced}


def check_interface(name: str) -> None:
    """Raise ``InputError`` if this machine has no network interface ``name``, or it has no address."""
    known = [found for _, found in socket.if_nameindex()]
    if name not in known:
        raise InputError("interface", name, f"expected a network interface of this machine: {', '.join(known)}")
    with_address = [each for each in known if _has_address(each)]
    if name not in with_address:
        limit = f"expected a network interface with an address: {', '.join(with_address) or 'there is none'}"
        raise InputError("interface", name, limit)


def _has_address(interface: str) -> bool:
    """Whether the interface has an IPv4 or IPv6 address; always True outside Linux."""
    if sys.platform != "linux":
        return True
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked, suppress(OSError):
        fcntl.ioctl(asked, _SIOCGIFADDR, struct.pack("256s", interface.encode()))
        return True
    with suppress(OSError):
        return any(line.split()[-1] == interface for line in Path("/proc/net/if_inet6").read_text().splitlines())
    return False


def check_devices(field: str, value: str, start: Launch, num_ranks: int) -> None:
    """Raise ``InputError`` for ``field`` if this machine has too few CUDA devices for its ranks, one each.

    Applies only if ``start`` runs the ranks on this machine.
    """
    here = (start.func if isinstance(start, partial) else start) is run_ranks
    if here and (found := _num_cuda_devices()) < num_ranks:
        limit = f"expected a CUDA device for each of {num_ranks} ranks; torch finds {found} on this machine"
        raise InputError(field, value, limit)


def _num_cuda_devices() -> int:
    """Count the devices in another process, so that this one opens none."""
    code = "import torch; print(torch.cuda.device_count() if torch.distributed.is_nccl_available() else 0)"
    command = [sys.executable, "-W", "ignore", "-c", code]
    asked = subprocess.run(
        command, capture_output=True, text=True, env=rank_environment(), timeout=_DEVICE_QUERY_TIMEOUT_S
    )
    return int(asked.stdout) if asked.returncode == 0 else 0


def _stop_process(process: subprocess.Popen[bytes], module: str) -> None:
    """Ask the process to stop its ranks; if it does not, kill it and them by process id."""
    if process.poll() is not None:
        return
    ranks = _children(process.pid)
    process.terminate()
    for pid in ranks:  # a suspended rank would not react to a signal
        with suppress(OSError):
            os.kill(pid, signal.SIGCONT)
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
