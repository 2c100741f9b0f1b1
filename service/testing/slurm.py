"""A real Slurm cluster with virtual nodes on this machine, in its own folder.

Needs root and the packages slurm-wlm and munge; with accounting, also those of ``autosbp.service.testing.accounting``.
"""

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

from autosbp.service.testing import _daemons
from autosbp.service.testing.accounting import Accounting

_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol")
_ENDING_S = 10.0
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
{more}"""


def missing_programs() -> list[str]:
    """Programs and rights that this machine lacks for a virtual Slurm."""
    lacks = [name for name in _PROGRAMS if shutil.which(name, path=_daemons.PATH) is None]
    return lacks + ([] if os.geteuid() == 0 else ["root"])


class VirtualSlurm:
    """Runs a controller and nodes during the block; ``conf`` is the value of SLURM_CONF for clients.

    With ``accounts`` it runs accounting, and the controller forgets a job some seconds after its end.
    """

    def __init__(self, folder: Path, num_nodes: int = 3, *, accounts: bool = False) -> None:
        self._folder, self._num_nodes = folder.resolve(), num_nodes
        self._accounts, self._accounting = accounts, ExitStack()
        self._controller: subprocess.Popen[bytes] | None = None
        self._stack = ExitStack()
        self.conf = self._folder / "slurm.conf"

    def __enter__(self) -> Self:
        first = _daemons.free_ports(self._num_nodes + 2)
        accounting = Accounting(self._folder, self._folder / "munge.socket", first + self._num_nodes + 1)
        (self._folder / "state").mkdir(parents=True)
        self.conf.write_text(
            _CONF.format(
                host=socket.gethostname(),
                folder=self._folder,
                port=first,
                first_port=first + 1,
                last_port=first + self._num_nodes,
                last=self._num_nodes,
                more=f"MinJobAge=2\n{accounting.conf}" if self._accounts else "",
            )
        )
        key = self._folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        with ExitStack() as stack:
            self._munge(stack)
            if self._accounts:
                stack.enter_context(self._accounting).enter_context(accounting)
                self.client("sacctmgr", "--immediate", "add", "cluster", "virtual")
            self.start_controller()
            stack.callback(self.stop_controller)
            for node in range(1, self._num_nodes + 1):
                stack.callback(
                    _daemons.stop,
                    self._start(f"slurmd.n{node}", "slurmd", "-D", "-N", f"n{node}", "-f", str(self.conf)),
                )
            self.wait_until_ready(idle=True)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        until_s = time.monotonic() + _ENDING_S
        with suppress(subprocess.SubprocessError):
            self.client("scancel", "--me")
            while self.client("squeue", "--noheader").strip() and time.monotonic() < until_s:
                time.sleep(_daemons.POLL_S)
        self._stack.close()
        for pid in self._step_daemons():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def client(self, *command: str) -> str:
        """Run one of Slurm's clients and return its output."""
        env = {**os.environ, "SLURM_CONF": str(self.conf)}
        return subprocess.run(command, env=env, check=True, capture_output=True, text=True, timeout=30).stdout

    def start_controller(self) -> None:
        """Start or restart the controller."""
        self._controller = self._start("slurmctld", "slurmctld", "-D", "-f", str(self.conf))

    def stop_accounting(self) -> None:
        """Stop accounting; the controller keeps running."""
        self._accounting.close()

    def stop_controller(self) -> None:
        """Stop the controller; jobs keep running."""
        if self._controller is not None:
            _daemons.stop(self._controller)
            self._controller = None

    def _step_daemons(self) -> list[int]:
        """Pids of slurmstepd processes of this cluster that are left; no process of ours is their parent."""
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
        stack.callback(_daemons.stop, self._start("munged", "munged", "--foreground", "--force", log, *at.values()))
        _daemons.wait_until((self._folder / "munge.socket").is_socket, self._folder, "munged")

    def wait_until_ready(self, *, idle: bool = False) -> None:
        """Wait until the controller answers, and with ``idle`` until all nodes are idle."""

        def ready() -> bool:
            with suppress(subprocess.SubprocessError):
                found = self.client("sinfo", "--noheader", "--format=%T %D").split()
                return not idle or found == ["idle", str(self._num_nodes)]
            return False

        _daemons.wait_until(ready, self._folder, "slurmctld")

    def _start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        return _daemons.start(self._folder, name, *command)
