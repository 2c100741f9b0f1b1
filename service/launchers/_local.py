"""Jobs on this machine as detached processes: they outlive the service, and its successor finds them."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from autosbp.errors import InputError
from autosbp.launch.local import rank_environment
from autosbp.sandbox.environment import filter_environment
from autosbp.service.jobs._processes import OUTLIVES_SERVICE
from autosbp.service.launchers._base import JobSpec, LauncherError
from autosbp.service.launchers._cluster_launcher import ClusterLauncher
from autosbp.service.launchers._job_folder import JobFolder
from autosbp.utils.processes import start_ticks

_START_S, _POLL_S = 30.0, 0.05
_DETACH = ["/bin/sh", "-c", '"$@" >>"$0" 2>&1 &']


class LocalLauncher(ClusterLauncher):
    """A cluster of one node, this machine. A job exists once its process has claimed the key and recorded its pid."""

    name = "local"

    def active_keys(self) -> Sequence[str]:
        """See ``Launcher``."""
        folders = [JobFolder(self._root, path.parent.name) for path in self._root.glob("*/spec.json")]
        return [folder.path.name for folder in folders if _job_pid(folder) is not None]

    def _check(self, spec: JobSpec) -> None:
        if spec.num_nodes != 1:
            raise InputError(
                "num_nodes", spec.num_nodes, ("expected one node: the local launcher uses only this machine")
            )

    def _submit(self, folder: JobFolder) -> str:
        """Start the process detached: its parent shell exits at once."""
        token = secrets.token_hex(8)
        command = [sys.executable, "-m", "autosbp.service.launchers._node_process", str(folder.path), token, "0"]
        log = str(folder.path / "node.log")
        env = {**filter_environment(rank_environment()), **OUTLIVES_SERVICE}
        subprocess.run([*_DETACH, log, *command], env=env, check=True, start_new_session=True)
        until_s = time.monotonic() + _START_S
        while (head := folder.head) is None:
            if time.monotonic() > until_s:
                raise LauncherError(f"the job's process did not start: {Path(log).read_text(errors='replace')[-2000:]}")
            time.sleep(_POLL_S)
        return str(head["token"])

    def _find_native_id(self, folder: JobFolder) -> str | None:
        return folder.token

    def _native(self, folder: JobFolder) -> tuple[str, str] | None:
        if _job_pid(folder) is not None:
            return "running", ""
        return folder.outcome()  # it may have recorded its end meanwhile

    def _cancel(self, folder: JobFolder) -> None:
        """Signal the process; it would also notice the mark in the folder, but later."""
        if (pid := _job_pid(folder)) is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)


def _job_pid(folder: JobFolder) -> int | None:
    """Pid of the job's process; None if it does not run on this machine."""
    head = folder.head
    if head is None or start_ticks(head["pid"]) != head["start_ticks"]:
        return None
    return int(head["pid"])
