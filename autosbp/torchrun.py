"""Starts ranks on this machine, watches them, and ends what it started (by process id, nothing else)."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from autosbp.errors import InputError

_POLL_S = 0.1
_GRACE_S = 15.0
_SIOCGIFADDR = 0x8915  # of linux/sockios.h: the IPv4 address of an interface
_ASKED_S = 120.0
_LOG_TAIL_BYTES = 8000
OWNER = "AUTOSBP_OWNER"
"""Names the process without which ``autosbp.forked`` ends its ranks."""
MAX_LOCAL_RANKS = 64


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the ranks ended: ``reason`` is "" after success, else words such as "a rank failed"."""

    reason: str
    log_tail: str


class Launch(Protocol):
    """How ranks are started: ``run_ranks`` on this machine, ``EmulatedCluster.launch`` on several nodes."""

    def __call__(
        self,
        module: str,
        arguments: Sequence[str],
        num_ranks: int,
        log_path: Path,
        *,
        timeout_s: float,
        poll: Callable[[], bool] | None = None,
    ) -> Outcome:
        """Run ``python -m module arguments`` as ``num_ranks`` ranks under torchrun's environment; wait for their end.

        The output of rank 0's node goes to ``log_path``. ``poll`` is called about ten times a second; when it returns
        False, or raises, or ``timeout_s`` passes, the ranks are ended. Every path in ``arguments`` can be read and
        written by all ranks. No process is left.
        """


def run_ranks(
    module: str,
    arguments: Sequence[str],
    num_ranks: int,
    log_path: Path,
    *,
    timeout_s: float,
    poll: Callable[[], bool] | None = None,
    interface: str = "lo",
) -> Outcome:
    """The ``Launch`` of this machine: the ranks of one ``autosbp.forked``, which talk over ``interface``.

    ``OMP_NUM_THREADS`` is 1 unless the environment sets it. Raises ``InputError`` before anything starts where the
    interface does not exist. Ranks end with this process, even one that is killed.
    """
    check_interface(interface)
    deadline = time.monotonic() + timeout_s
    command = [sys.executable, "-u", "-m", "autosbp.forked", str(num_ranks), module, *arguments]
    process = start(command, log_path, {**environment(interface), OWNER: str(os.getpid())})
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
        ended = process.returncode < 0  # its ranks end with it
        reason = f"their parent was ended by {signal.Signals(-process.returncode).name}" if ended else "a rank failed"
    return Outcome(reason, log_tail(log_path))


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


def start(command: Sequence[str], log_path: Path, env: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start a command in a session of its own; all that it prints goes to ``log_path``."""
    with log_path.open("wb") as log:
        return subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=env, start_new_session=True
        )


def log_tail(log_path: Path) -> str:
    """The end of a log."""
    return log_path.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace").strip()


def environment(interface: str = "lo") -> dict[str, str]:
    """The caller's environment with this tree on the path and traffic kept to ``interface``."""
    root = str(Path(__file__).resolve().parent.parent)
    paths = [root, os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else [root]
    forced = {"PYTHONPATH": os.pathsep.join(paths), "GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface}
    return {"OMP_NUM_THREADS": "1", **os.environ, **forced}


def check_interface(name: str) -> None:
    """Raise ``InputError`` where this machine has no network interface ``name``, or one that has no address."""
    known = [found for _, found in socket.if_nameindex()]
    if name not in known:
        raise InputError("interface", name, f"a network interface of this machine is expected: {', '.join(known)}")
    with_address = [each for each in known if _has_address(each)]
    if name not in with_address:
        limit = f"a network interface with an address is expected: {', '.join(with_address) or 'there is none'}"
        raise InputError("interface", name, limit)


def _has_address(interface: str) -> bool:
    """Of IPv4 or IPv6; as far as this is known to Linux."""
    if sys.platform != "linux":
        return True
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked, suppress(OSError):
        fcntl.ioctl(asked, _SIOCGIFADDR, struct.pack("256s", interface.encode()))
        return True
    with suppress(OSError):
        return any(line.split()[-1] == interface for line in Path("/proc/net/if_inet6").read_text().splitlines())
    return False


def check_devices(field: str, value: str, start: Launch, num_ranks: int) -> None:
    """Raise ``InputError`` that names the field where ranks that ``start`` starts on this machine, each with a CUDA device of
    its own, would find too few."""
    here = (start.func if isinstance(start, partial) else start) is run_ranks
    if here and (found := _num_cuda_devices()) < num_ranks:
        limit = f"a CUDA device for each of {num_ranks} ranks is expected, and torch finds {found} here"
        raise InputError(field, value, limit)


def _num_cuda_devices() -> int:
    """Asked in another process, so that this one opens none."""
    code = "import torch; print(torch.cuda.device_count() if torch.distributed.is_nccl_available() else 0)"
    command = [sys.executable, "-W", "ignore", "-c", code]
    asked = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=_ASKED_S)
    return int(asked.stdout) if asked.returncode == 0 else 0


def _end(process: subprocess.Popen[bytes], module: str) -> None:
    """Ask the process to stop its ranks; if it does not, end it and them by process id."""
    if process.poll() is not None:
        return
    ranks = _children(process.pid)
    process.terminate()
    for pid in ranks:  # a rank that is stopped would take no notice
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
