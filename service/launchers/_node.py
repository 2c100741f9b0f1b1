"""One node's process of a job, whatever the cluster: claims the key, runs the entry point, tells how it ended.

python -m service.launchers._node FOLDER TOKEN NODE [--with-parent]

TOKEN is the cluster job's own name, NODE the node's number; either may be the name of an environment variable that holds
it. Loads nothing but the standard library and light modules: it starts once on every node of every job.
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
from pathlib import Path

from autosbp.processes import start_ticks
from autosbp.torchrun import environment, torchrun_command
from service.jobs._processes import descendants
from service.launchers._base import ENTRY_POINTS, JobSpec, node_log
from service.launchers._folder import ENDED, STOPPED, JobFolder

NOT_MINE = 3
_MEET_S = 300.0
_LOOK_S, _POLL_S = 1.0, 0.05
_GRACE_S = 2.0  # schedulers kill what has not ended a few seconds after they asked; Ray after 3
_SIOCGIFADDR = 0x8915
_OTHER_NET = (
    "192.0.2.1",
    9,
)  # TEST-NET-1 (RFC 5737): connecting a datagram socket sends nothing, but picks the way out


def main(path: str, token: str, node: int, with_parent: bool) -> int:
    """The exit code: the entry point's own, or ``NOT_MINE``."""
    folder = JobFolder(Path(path).parent, Path(path).name)
    spec = folder.spec
    stop = _Stop(with_parent)
    address = _address(spec.interface)
    if node == 0:
        if not folder.claim(token):
            return _claimed(folder, token)
        folder.announce(
            token=token,
            address=address,
            port=_free_port(address),
            pid=os.getpid(),
            start_ticks=start_ticks(os.getpid()),
        )
    head = _meet(folder, stop)
    if head is None or head["token"] != token:
        _say("another job runs this key")
        return NOT_MINE
    command = _command(spec, node, address, (str(head["address"]), int(str(head["port"]))))
    code, reason = _run(command, folder, spec, node, stop)
    folder.end(node, code, reason)
    if reason:
        _say(reason)
    return code


def _claimed(folder: JobFolder, token: str) -> int:
    if folder.token == token:
        folder.end(0, NOT_MINE, "the cluster started it again, which it must not")
    _say("another job has claimed this key")
    return NOT_MINE


class _Stop:
    """Whether somebody outside wants the end: the cluster by SIGTERM, or the parent by having ended."""

    def __init__(self, with_parent: bool) -> None:
        self._parent = os.getppid() if with_parent else None
        self._told = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._tell)

    def _tell(self, *_: object) -> None:
        self._told = True

    def __bool__(self) -> bool:
        return self._told or (self._parent is not None and os.getppid() != self._parent)


def _meet(folder: JobFolder, stop: _Stop) -> Mapping[str, object] | None:
    """Wait for what node 0 says; a shared file system may take a while to show it."""
    until_s = time.monotonic() + _MEET_S
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
        return [sys.executable, "-u", "-m", "autosbp.forked", ranks, spec.module, *spec.arguments]
    return torchrun_command(
        *(spec.module, spec.arguments, spec.ranks_per_node),
        master=head,
        local_address=address,
        num_nodes=spec.num_nodes,
        node=node,
    )


def _run(command: Sequence[str], folder: JobFolder, spec: JobSpec, node: int, stop: _Stop) -> tuple[int, str]:
    """Run to the end, or to the first reason to stop; the exit code, and why where it is not 0."""
    until_s = time.monotonic() + spec.time_limit_s
    own = {"AUTOSBP_NODE": str(node), "AUTOSBP_NUM_NODES": str(spec.num_nodes)}
    env = {**(_plain() if spec.interface is None else environment(spec.interface)), **spec.env, **own}
    with node_log(spec.log_path, node).open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=env, start_new_session=True
        )
    why, looked_s = "", -_LOOK_S
    while not why:
        with suppress(subprocess.TimeoutExpired):
            code = process.wait(_POLL_S)
            return (code if code > 0 else 128 - code, f"exit code {code}") if code else (0, "")
        if stop:
            why = ENDED
        elif time.monotonic() > until_s:
            why = f"timed out after {spec.time_limit_s:g} s"
        elif time.monotonic() - looked_s > _LOOK_S:
            looked_s = time.monotonic()
            if folder.is_cancelled:
                why = "cancelled"
            elif folder.failure(spec.num_nodes) is not None:
                why = STOPPED
    _end(process)
    return 143, why


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask for the end, and after a while end it with all that it started."""
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


def _plain() -> dict[str, str]:
    """``autosbp.torchrun.environment`` where no interface is named: the choice is the libraries'."""
    free = environment()
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        free.pop(name)
        if name in os.environ:
            free[name] = os.environ[name]
    return free


def _address(interface: str | None) -> str:
    """This node's address: that of the interface, or the one by which it reaches other networks."""
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as probe:
        if interface is not None:
            packed = struct.pack("256s", interface.encode()[:15])
            return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, packed)[20:24])
        try:
            probe.connect(_OTHER_NET)
        except OSError:  # a machine of its own
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def _free_port(address: str) -> int:
    with socket.create_server((address, 0)) as listening:
        return int(listening.getsockname()[1])


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")


if __name__ == "__main__":
    given = [os.environ.get(text, text) for text in sys.argv[1:4]]
    sys.exit(main(given[0], given[1], int(given[2]), "--with-parent" in sys.argv[4:]))
