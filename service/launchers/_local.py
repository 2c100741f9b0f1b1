"""Jobs on this machine, beside the service: they outlive it, and are found again by its successor."""

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
from autosbp.processes import start_ticks
from autosbp.torchrun import environment
from service.jobs._processes import OUTLIVES
from service.launchers._base import JobSpec, LauncherError
from service.launchers._cluster import ClusterLauncher
from service.launchers._folder import JobFolder

_START_S, _POLL_S = 30.0, 0.05
_DETACH = ["/bin/sh", "-c", '"$@" >>"$0" 2>&1 &']


class LocalLauncher(ClusterLauncher):
    """One node, this one. A job is there as soon as its process has claimed the key, which says which process it is."""

    name = "local"

    def active_keys(self) -> Sequence[str]:
        """See ``Launcher``."""
        folders = [JobFolder(self._root, path.parent.name) for path in self._root.glob("*/spec.json")]
        return [folder.path.name for folder in folders if _process(folder) is not None]

    def _check(self, spec: JobSpec) -> None:
        if spec.num_nodes != 1:
            raise InputError("num_nodes", spec.num_nodes, "one node is expected: this launcher has this machine alone")

    def _submit(self, folder: JobFolder) -> str:
        """The process is nobody's child: its shell has ended."""
        token = secrets.token_hex(8)
        command = [sys.executable, "-m", "service.launchers._node", str(folder.path), token, "0"]
        log = str(folder.path / "node.log")
        env = {**environment(), **OUTLIVES}
        subprocess.run([*_DETACH, log, *command], env=env, check=True, start_new_session=True)
        until_s = time.monotonic() + _START_S
        while (head := folder.head) is None:
            if time.monotonic() > until_s:
                raise LauncherError(f"the job's process did not start: {Path(log).read_text(errors='replace')[-2000:]}")
            time.sleep(_POLL_S)
        return str(head["token"])

    def _known(self, folder: JobFolder) -> str | None:
        return folder.token

    def _native(self, folder: JobFolder) -> tuple[str, str] | None:
        if _process(folder) is not None:
            return "running", ""
        return folder.outcome()  # it may have left its word since

    def _cancel(self, folder: JobFolder) -> None:
        """The process looks for the mark; a signal makes it quicker."""
        if (pid := _process(folder)) is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)


def _process(folder: JobFolder) -> int | None:
    """The job's process, while it runs on this machine."""
    head = folder.head
    if head is None or start_ticks(head["pid"]) != head["start_ticks"]:
        return None
    return int(head["pid"])
