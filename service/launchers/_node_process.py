"""The process of a job on one node of any cluster: claims the key, runs the entry point, records how it ended.

python -m autosbp.service.launchers._node_process FOLDER TOKEN NODE [--with-parent]

TOKEN is the cluster's id of the job, NODE the node's number; either may be the name of an environment variable that
holds the value. It imports only the standard library and light modules, because it starts on every node of every job.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

from autosbp.errors import InputError
from autosbp.launch.local import LOOPBACK, rank_environment, start, torchrun_command
from autosbp.sandbox import Sandbox
from autosbp.sandbox.capped_log import capped_log
from autosbp.service.jobs._processes import descendants
from autosbp.service.launchers._base import ENTRY_POINTS, JobSpec, node_log
from autosbp.service.launchers._job_folder import ENDED_BY_CLUSTER, STOPPED_WITH_OTHERS, JobFolder
from autosbp.utils.processes import start_ticks

EXIT_KEY_CLAIMED, EXIT_NOT_CONFINED = 3, 4
_HEAD_TIMEOUT_S = 300.0
_LOOK_S, _POLL_S = 1.0, 0.05
_GRACE_S = 2.0  # schedulers kill a process a few seconds after asking it to end; Ray after 3
_SIOCGIFADDR = 0x8915
_OTHER_NET = (
    "192.0.2.1",
    9,
)  # TEST-NET-1 (RFC 5737): connecting a datagram socket sends nothing, but selects the outgoing interface


def main(path: str, token: str, node: int, with_parent: bool) -> int:
    """Run this node's part of the job.

    Args:
        path: folder of the job.
        token: the cluster's id of the job.
        node: number of this node.
        with_parent: whether to stop when the parent process ends.

    Returns:
        The entry point's exit code, or ``EXIT_KEY_CLAIMED`` if another job has claimed the key.
    """
    folder = JobFolder(Path(path).parent, Path(path).name)
    spec = folder.spec
    stop = _StopRequest(with_parent)
    address = _address(spec.interface)
    if node == 0:
        if not folder.claim(token):
            return _refuse_claimed_key(folder, token)
        folder.publish_head(
            token=token,
            address=address,
            port=_free_port(address),
            pid=os.getpid(),
            start_ticks=start_ticks(os.getpid()),
        )
    head = _wait_for_head(folder, stop)
    if head is None or head["token"] != token:
        _log_line("another job runs this key")
        return EXIT_KEY_CLAIMED
    command = _command(spec, node, address, (str(head["address"]), int(str(head["port"]))))
    code, reason = _run(command, folder, spec, node, stop)
    folder.end(node, code, reason)
    if reason:
        _log_line(reason)
    return code


def _refuse_claimed_key(folder: JobFolder, token: str) -> int:
    if folder.token == token:
        folder.end(0, EXIT_KEY_CLAIMED, "the cluster restarted the job, which is not allowed")
    _log_line("another job has claimed this key")
    return EXIT_KEY_CLAIMED


class _StopRequest:
    """True once the cluster requests the end (SIGTERM or SIGINT) or the parent has ended."""

    def __init__(self, with_parent: bool) -> None:
        self._parent = os.getppid() if with_parent else None
        self._told = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._tell)

    def _tell(self, *_: object) -> None:
        self._told = True

    def __bool__(self) -> bool:
        return self._told or (self._parent is not None and os.getppid() != self._parent)


def _wait_for_head(folder: JobFolder, stop: _StopRequest) -> Mapping[str, object] | None:
    """Wait for node 0's announcement, which a shared file system may show late."""
    until_s = time.monotonic() + _HEAD_TIMEOUT_S
    while time.monotonic() < until_s and not stop:
        if (head := folder.head) is not None:
            return head
        time.sleep(_POLL_S)
    return None


def _command(spec: JobSpec, node: int, address: str, head: tuple[str, int]) -> list[str]:
    if not ENTRY_POINTS[spec.module]:
        return [sys.executable, "-u", "-m", spec.module, *spec.arguments]
    if spec.num_nodes == 1:
        ranks = str(spec.ranks_per_node)
        return [sys.executable, "-u", "-m", "autosbp.launch.fork_server", ranks, spec.module, *spec.arguments]
    return torchrun_command(
        *(spec.module, spec.arguments, spec.ranks_per_node),
        master=head,
        local_address=address,
        num_nodes=spec.num_nodes,
        node=node,
    )


def _run(command: Sequence[str], folder: JobFolder, spec: JobSpec, node: int, stop: _StopRequest) -> tuple[int, str]:
    """Run the command until it ends or must stop; return the exit code and, unless it is 0, the reason."""
    until_s = time.monotonic() + spec.time_limit_s
    own = {"AUTOSBP_NODE": str(node), "AUTOSBP_NUM_NODES": str(spec.num_nodes)}
    env = {
        **(_environment_without_interface() if spec.interface is None else rank_environment(spec.interface)),
        **spec.env,
        **own,
    }
    sandbox = replace(Sandbox.from_dict(spec.sandbox), gpus=spec.gpus_per_node > 0)
    log_path, alone = node_log(spec.log_path, node), spec.num_nodes == 1 and spec.interface == LOOPBACK
    try:
        with (
            sandbox.confined(command, log_path.parent, env, own_network=alone) as (confined, clean),
            capped_log(log_path, sandbox.log_bytes) as log,
        ):
            return _follow(start(confined, log, clean), folder, spec, stop, until_s)
    except InputError as error:
        return EXIT_NOT_CONFINED, str(error)


def _follow(
    process: subprocess.Popen[bytes], folder: JobFolder, spec: JobSpec, stop: _StopRequest, until_s: float
) -> tuple[int, str]:
    why, looked_s = "", -_LOOK_S
    while not why:
        with suppress(subprocess.TimeoutExpired):
            code = process.wait(_POLL_S)
            return (code if code > 0 else 128 - code, f"exit code {code}") if code else (0, "")
        if stop:
            why = ENDED_BY_CLUSTER
        elif time.monotonic() > until_s:
            why = f"timed out after {spec.time_limit_s:g} s"
        elif time.monotonic() - looked_s > _LOOK_S:
            looked_s = time.monotonic()
            if folder.is_cancelled:
                why = "cancelled"
            elif folder.failure(spec.num_nodes) is not None:
                why = STOPPED_WITH_OTHERS
    _end(process)
    return 143, why


def _end(process: subprocess.Popen[bytes]) -> None:
    """Terminate the process, and after a grace period kill it and all that it started."""
    started = {pid: start_ticks(pid) for pid in descendants(process.pid)}
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE_S)
    if process.poll() is None:
        process.kill()
        process.wait()
    for pid, ticks in started.items():
        if ticks is not None and start_ticks(pid) == ticks:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _environment_without_interface() -> dict[str, str]:
    """``autosbp.launch.local.rank_environment`` without an interface: the libraries choose one."""
    free = rank_environment()
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        free.pop(name)
        if name in os.environ:
            free[name] = os.environ[name]
    return free


def _address(interface: str | None) -> str:
    """This node's address: the interface's, or the one with which it reaches other networks."""
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as probe:
        if interface is not None:
            packed = struct.pack("256s", interface.encode()[:15])
            return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, packed)[20:24])
        try:
            probe.connect(_OTHER_NET)
        except OSError:  # a machine without a route to other networks
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def _free_port(address: str) -> int:
    with socket.create_server((address, 0)) as listening:
        return int(listening.getsockname()[1])


def _log_line(text: str) -> None:
    sys.stderr.write(text + "\n")


if __name__ == "__main__":
    given = [os.environ.get(text, text) for text in sys.argv[1:4]]
    sys.exit(main(given[0], given[1], int(given[2]), "--with-parent" in sys.argv[4:]))
