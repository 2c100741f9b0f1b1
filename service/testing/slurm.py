"""A real Slurm with virtual nodes on this machine, in a folder of its own: root and the packages slurm-wlm, munge."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol")
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
_START_S, _STOP_S, _POLL_S = 30.0, 10.0, 0.05
_CONF = """\
ClusterName=virtual
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SlurmdParameters=config_overrides
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1
KillWait=5
MessageTimeout=3
NodeName=n[1-{last}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first_port}-{last_port}] CPUs=2
PartitionName=all Nodes=n[1-{last}] Default=YES MaxTime=INFINITE State=UP
"""


def missing_programs() -> list[str]:
    """What this machine lacks for a virtual Slurm; root among it."""
    lacks = [name for name in _PROGRAMS if shutil.which(name, path=_PATH) is None]
    return lacks + ([] if os.geteuid() == 0 else ["root"])


class VirtualSlurm:
    """A controller and nodes, up as long as the block; ``conf`` is what SLURM_CONF must be for clients."""

    def __init__(self, folder: Path, num_nodes: int = 3) -> None:
        self._folder, self._num_nodes = folder.resolve(), num_nodes
        self._controller: subprocess.Popen[bytes] | None = None
        self._stack = ExitStack()
        self.conf = self._folder / "slurm.conf"

    def __enter__(self) -> Self:
        first = _free_ports(self._num_nodes + 1)
        (self._folder / "state").mkdir(parents=True)
        self.conf.write_text(
            _CONF.format(
                host=socket.gethostname(),
                folder=self._folder,
                port=first,
                first_port=first + 1,
                last_port=first + self._num_nodes,
                last=self._num_nodes,
            )
        )
        key = self._folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        with ExitStack() as stack:
            self._munge(stack)
            self.start_controller()
            stack.callback(self.stop_controller)
            for node in range(1, self._num_nodes + 1):
                stack.callback(
                    _stop, self._start(f"slurmd.n{node}", "slurmd", "-D", "-N", f"n{node}", "-f", str(self.conf))
                )
            self.wait_until_ready(idle=True)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        until_s = time.monotonic() + _STOP_S
        with suppress(subprocess.SubprocessError):
            self.client("scancel", "--me")
            while self.client("squeue", "--noheader").strip() and time.monotonic() < until_s:
                time.sleep(_POLL_S)
        self._stack.close()
        for pid in self._step_daemons():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def client(self, *command: str) -> str:
        """What one of Slurm's clients prints."""
        env = {**os.environ, "SLURM_CONF": str(self.conf)}
        return subprocess.run(command, env=env, check=True, capture_output=True, text=True, timeout=30).stdout

    def start_controller(self) -> None:
        """Start the controller, or start it again."""
        self._controller = self._start("slurmctld", "slurmctld", "-D", "-f", str(self.conf))

    def stop_controller(self) -> None:
        """End the controller; jobs run on."""
        if self._controller is not None:
            _stop(self._controller)
            self._controller = None

    def _step_daemons(self) -> list[int]:
        """Those of this cluster's steps that are left; they are no process' children."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                is_here = (process / "cwd").readlink() == self._folder
                if is_here and (process / "comm").read_text().startswith("slurmstepd"):
                    found.append(int(process.name))
        return found

    def _munge(self, stack: ExitStack) -> None:
        at = {
            name: f"--{name}={self._folder / f'munge.{end}'}"
            for name, end in (("socket", "socket"), ("key-file", "key"), ("pid-file", "pid"), ("seed-file", "seed"))
        }
        log = f"--log-file={self._folder / 'munge.log'}"
        stack.callback(_stop, self._start("munged", "munged", "--foreground", "--force", log, *at.values()))
        until_s = time.monotonic() + _START_S
        while not (self._folder / "munge.socket").is_socket():
            self._check_time(until_s, "munged")

    def wait_until_ready(self, *, idle: bool = False) -> None:
        """Wait until the controller answers; with ``idle``, until no node is at work or starting, too."""
        until_s = time.monotonic() + _START_S
        while True:
            with suppress(subprocess.SubprocessError):
                found = self.client("sinfo", "--noheader", "--format=%T %D").split()
                if not idle or found == ["idle", str(self._num_nodes)]:
                    return
            self._check_time(until_s, "slurmctld")

    def _check_time(self, until_s: float, program: str) -> None:
        if time.monotonic() > until_s:
            raise TimeoutError(f"{program} is not ready: {(self._folder / f'{program}.out').read_text()[-2000:]}")
        time.sleep(_POLL_S)

    def _start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        """A daemon of ours. Its environment becomes that of its jobs in part, so it has little of it."""
        env = {name: os.environ[name] for name in ("HOME", "LANG") if name in os.environ}
        with (self._folder / f"{name}.out").open("ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**env, "PATH": _PATH},
                cwd=self._folder,
                start_new_session=True,
            )


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _free_ports(count: int) -> int:
    """The first of ``count`` neighbouring ports that are free, below those that the kernel gives out."""
    for first in range(21_000 + os.getpid() % 1000 * 8, 32_000, count):
        with ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    stack.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
            return first
    raise OSError("no free ports between 21000 and 32000")
