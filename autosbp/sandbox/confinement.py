"""Confinement of processes that run untrusted code: ranks of trials and calibrations.

- ``bubblewrap``: the process can read the system and Python, write the job's folder, and sees nothing else of the
  machine; processes, ``/tmp`` and, on request, the network are the job's own. It includes everything of ``limits``.
- ``limits``: no new privileges; limits on open files, file size, processes and address space; no core files; out of
  memory, the kernel kills it before the process that started it; a temporary folder of its own.
- ``none``: only the clean environment, which the other ways have, too.

The tools are bubblewrap (``bwrap``) and util-linux's ``choom``, ``prlimit`` and ``setpriv``. Each executes the next in
its place, so a process keeps the id with which it was started.
"""

from __future__ import annotations

import os
import pwd
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from autosbp.errors import InputError
from autosbp.sandbox import bubblewrap
from autosbp.sandbox.bubblewrap import View
from autosbp.sandbox.capped_log import MOST_BYTES
from autosbp.sandbox.environment import filter_environment
from autosbp.sandbox.regular_files import irregular_names, remove_irregular
from autosbp.utils.tempdirs import temporary_folder

MODES = ("bubblewrap", "limits", "none")
_TOOLS = ("choom", "prlimit", "setpriv")
_OOM_STEP, _OOM_MOST = 250, 1000
_NUM_FILES, _NUM_PROCESSES = 65_536, 16_384
_TRY_S = 20.0
_SCRATCH = "autosbp-job-"


@dataclass(frozen=True, slots=True)
class Sandbox:
    """Configuration of the confinement of a job's processes.

    Args:
        way: one of ``MODES``; None means the strongest that works on the machine where they start.
        user: name of the user that they run as; only root may change the user.
        memory_bytes: address space of a process without GPUs (GPU processes reserve more than the memory); None means
            no limit.
        file_bytes: size limit of a file.
        log_bytes: size limit of their log.
        variables: names of environment variables that they get besides those of ``autosbp.sandbox.environment``.
        hidden: files and folders of the service that they must not see, wherever they are.
        gpus: whether they use the machine's GPUs.
    """

    way: str | None = None
    user: str | None = None
    memory_bytes: int | None = 32 * 2**30
    file_bytes: int = 4 * 2**30
    log_bytes: int = MOST_BYTES
    variables: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    gpus: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON values."""
        return {**asdict(self), "variables": list(self.variables), "hidden": list(self.hidden)}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Sandbox:
        """Inverse of ``to_dict``."""
        lists = {name: tuple(data[name]) for name in ("variables", "hidden") if name in data}
        return Sandbox(**{**data, **lists})

    def environment(self, given: Mapping[str, str]) -> dict[str, str]:
        """The part of an environment that the processes get."""
        return filter_environment(given, self.variables)

    def resolved_way(self) -> str:
        """The way used on this machine; raise ``InputError`` if the requested one does not work here."""
        if self.way not in (None, *MODES):
            raise InputError("sandbox", self.way, f"expected one of {', '.join(MODES)}")
        lacking = {
            "bubblewrap": limits_unavailable_reason() or bubblewrap_unavailable_reason(),
            "limits": limits_unavailable_reason(),
            "none": None,
        }
        if self.way is not None and (why := lacking[self.way]) is not None:
            raise InputError("sandbox", self.way, f"not available on this machine: {why}")
        way = self.way or next(way for way in MODES if lacking[way] is None)
        if self.user is not None:
            _check_user(self.user, way)
        return way

    @contextmanager
    def confined(
        self,
        command: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        *,
        own_network: bool = False,
    ) -> Iterator[tuple[list[str], dict[str, str]]]:
        """Yield the command that runs ``command`` confined, and its environment.

        At the end of the block its temporary files, and new links and pipes in ``folder``, are removed. Code that reads
        ``folder`` before must use ``autosbp.sandbox.regular_files``.

        Args:
            command: the command to confine.
            folder: the writable folder.
            environment: the environment before cleaning.
            own_network: whether the processes get a network with only a loopback interface; needs bubblewrap, and is
                ignored with GPUs, whose libraries use the machine's network.
        """
        before = irregular_names(folder)
        try:
            with self._confined(command, folder, self.environment(environment), own_network) as found:
                yield found
        finally:
            remove_irregular(folder, before)

    @contextmanager
    def _confined(
        self, command: Sequence[str], folder: Path, env: dict[str, str], own_network: bool
    ) -> Iterator[tuple[list[str], dict[str, str]]]:
        way = self.resolved_way()
        if way == "none":
            yield list(command), env
            return
        user = None if self.user is None else pwd.getpwnam(self.user)
        if user is not None:
            _change_owner(folder, user)
        limited = _limits(self.file_bytes, None if self.gpus else self.memory_bytes)
        if way == "bubblewrap":
            env |= {"HOME": bubblewrap.TEMPORARY, "TMPDIR": bubblewrap.TEMPORARY}
            view = View(folder, env.get("PYTHONPATH", ""), self.hidden, gpus=self.gpus)
            own_network = own_network and not self.gpus and bubblewrap_unavailable_reason("--unshare-net") is None
            if own_network:  # C++ warns about every address without a name, and this network has no name server
                env.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
            within = bubblewrap.command(view, own_network=own_network, changes_user=user is not None)
            yield [*limited, *within, *_user_command(user), *command], env
            return
        with temporary_folder(_SCRATCH) as scratch:
            if user is not None:
                os.chown(scratch, user.pw_uid, user.pw_gid)
                _open_way_to(folder, user)
            env |= {"HOME": str(scratch), "TMPDIR": str(scratch)}
            yield [*limited, *_user_command(user), *command], env

    @property
    def weakness(self) -> str:
        """Access that this machine's way leaves to a job's processes, in words; "" for bubblewrap."""
        way = self.resolved_way()
        if way == "bubblewrap":
            return ""
        why = (
            f" ({found})"
            if self.way is None and (found := limits_unavailable_reason() or bubblewrap_unavailable_reason())
            else ""
        )
        own = way == "limits" and self.user is not None
        what = (
            "reach the network and other processes of this machine"
            if own
            else ("read and write everything the service can")
        )
        return f"ranks are not sandboxed{why}: malicious code in an op could {what}; install bubblewrap"

    def exit_code(self, code: int) -> int:
        """Exit code of a confined process, -N if signal N killed it (bubblewrap reports 128 + N)."""
        return 128 - code if code > 128 and self.resolved_way() == "bubblewrap" else code


@cache
def limits_unavailable_reason() -> str | None:
    """Why limits cannot be set on this machine; None if they can."""
    lacking = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if sys.platform != "linux":
        return "not running Linux"
    return f"util-linux lacks {', '.join(lacking)}" if lacking else None


@cache
def bubblewrap_unavailable_reason(*options: str) -> str | None:
    """Why bubblewrap does not work on this machine, with additional options; None if it works."""
    if shutil.which(bubblewrap.PROGRAM) is None:
        return "bubblewrap is not installed"
    command = [*_user_command(None), *bubblewrap.probe_command(options), "true"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TRY_S, env=filter_environment(os.environ)
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bubblewrap does not work: {error}"
    return None if done.returncode == 0 else f"bubblewrap does not work: {done.stderr.strip()[-300:]}"


def oom_first_command() -> list[str]:
    """Command prefix that makes the kernel kill the command before this process when memory runs out."""
    if limits_unavailable_reason() is not None:
        return []
    own = int(Path("/proc/self/oom_score_adj").read_text())
    return ["choom", "-n", str(min(own + _OOM_STEP, _OOM_MOST)), "--"]


def _limits(file_bytes: int, memory_bytes: int | None) -> list[str]:
    """Command prefix that sets limits; none exceeds an existing limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = _least(hard, _NUM_FILES)
    wanted = {"fsize": file_bytes, "nproc": _NUM_PROCESSES, "as": memory_bytes or resource.RLIM_INFINITY}
    most = {
        name: _least(resource.getrlimit(getattr(resource, f"RLIMIT_{name.upper()}"))[1], limit)
        for name, limit in wanted.items()
    }
    options = [f"--{name}={limit}:{limit}" for name, limit in most.items() if limit != resource.RLIM_INFINITY]
    return [*oom_first_command(), "prlimit", "--core=0:0", f"--nofile={_least(soft, files)}:{files}", *options]


def _least(*limits: int) -> int:
    return min((each for each in limits if each != resource.RLIM_INFINITY), default=resource.RLIM_INFINITY)


def _user_command(user: pwd.struct_passwd | None) -> list[str]:
    other = [] if user is None else [f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
    return ["setpriv", "--no-new-privs", *other]


def _check_user(name: str, way: str) -> None:
    if way == "none":
        raise InputError("rank_user", name, "requires a sandbox other than none")
    if os.geteuid() != 0:
        raise InputError("rank_user", name, "requires the service to run as root")
    try:
        pwd.getpwnam(name)
    except KeyError:
        raise InputError("rank_user", name, "no such user on this machine") from None


def _change_owner(folder: Path, user: pwd.struct_passwd) -> None:
    """Make another user the owner of a folder and its direct entries."""
    for path in (folder, *folder.iterdir()):
        os.chown(path, user.pw_uid, user.pw_gid, follow_symlinks=False)


def _open_way_to(folder: Path, user: pwd.struct_passwd) -> None:
    """Let the user's group traverse parent folders that are closed to others, without any other access."""
    for parent in folder.resolve().parents:
        found = parent.stat()
        if not found.st_mode & 0o001 and found.st_uid == os.geteuid():
            os.chown(parent, -1, user.pw_gid)
            parent.chmod((found.st_mode & 0o700) | 0o010)


def group_of(user: str | None) -> int | None:
    """Group id of a user by name; None without a name, or for an unknown user."""
    try:
        return None if user is None else pwd.getpwnam(user).pw_gid
    except KeyError:
        return None
