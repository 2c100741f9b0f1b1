"""What all launchers do alike: submit once, find again, tell the state. A cluster adds five small methods."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from service.launchers._base import JobSpec, JobStatus, LauncherError, UnavailableError, check_key
from service.launchers._folder import JobFolder, status_of

_TRIES = 3
_LOOK_EVERY_S = 0.5


class ClusterLauncher(ABC):
    """Implements ``Launcher`` over one cluster.

    Args:
        root: folder of the jobs' folders, shared with all nodes.
        settle_s: how long a submission whose answer was lost may take to show in the cluster.
    """

    name: str

    def __init__(self, root: Path, settle_s: float = 3.0) -> None:
        self._root = root.resolve()
        self._settle_s = settle_s

    def submit(self, spec: JobSpec, key: str) -> JobStatus:
        """See ``Launcher``: look, submit, and where the answer is lost look again before another try."""
        folder = self._folder(key)
        self._check(spec)
        folder.prepare(spec)
        lost: UnavailableError | None = None
        for _ in range(_TRIES):
            found = self.find(key)
            if found is not None:
                return found
            try:
                folder.record(self._submit(folder))
            except UnavailableError as error:
                lost = error
                self._look(folder)
            except LauncherError:
                # A refusal can be the answer to a second try of the client's own: what counts is what is there.
                if self._known(folder) is None:
                    raise
        found = self.find(key)
        if found is None:
            raise lost or LauncherError(f"{self.name} has lost the job {key} that it had accepted")
        return found

    def find(self, key: str) -> JobStatus | None:
        """See ``Launcher``. The cluster is asked by the key only where the folder does not tell its name for the job."""
        folder = self._folder(key)
        native_id = self._identify(folder)
        return None if native_id is None else self._status(folder, native_id)

    def status(self, key: str) -> JobStatus:
        """See ``Launcher``."""
        found = self.find(key)
        if found is None:
            raise LauncherError(f"{self.name} has no job {key}")
        return found

    def logs(self, key: str, offset: int = 0) -> bytes:
        """See ``Launcher``."""
        folder = self._folder(key)
        return folder.log(offset) if folder.exists else b""

    def cancel(self, key: str) -> None:
        """See ``Launcher``. The mark in the folder ends the job even if the cluster does not hear."""
        folder = self._folder(key)
        folder.cancel()
        if self._identify(folder) is not None:
            self._cancel(folder)

    @abstractmethod
    def active_keys(self) -> Sequence[str]:
        """See ``Launcher``."""

    @abstractmethod
    def _check(self, spec: JobSpec) -> None:
        """Refuse a spec that this cluster cannot run: ``InputError``."""

    @abstractmethod
    def _submit(self, folder: JobFolder) -> str:
        """Make the cluster job of a folder, findable by its key from the moment at which it exists; the cluster's
        name for it."""

    @abstractmethod
    def _known(self, folder: JobFolder) -> str | None:
        """The cluster's name for the job of a folder's key, if it knows one."""

    @abstractmethod
    def _native(self, folder: JobFolder) -> tuple[str, str] | None:
        """State and reason of the folder's ``native_id`` as the cluster tells them; None where it does not know it."""

    @abstractmethod
    def _cancel(self, folder: JobFolder) -> None:
        """Ask the cluster for the job's end; no error where it does not know the job, or it has ended."""

    def _status(self, folder: JobFolder, native_id: str) -> JobStatus:
        left = folder.outcome()
        if left is not None:
            return JobStatus(*left, native_id)
        return status_of(folder, self._native(folder), native_id)

    def _identify(self, folder: JobFolder) -> str | None:
        """The cluster's name for the job, if there is one, kept in the folder from now on."""
        if not folder.exists:
            return None
        if (known := folder.native_id) is not None:
            return known
        found = self._known(folder) or folder.token
        if found is not None:
            folder.record(found)
        return found

    def _look(self, folder: JobFolder) -> None:
        """Wait until the job shows, or it could not be on its way any more."""
        until_s = time.monotonic() + self._settle_s
        while time.monotonic() < until_s and self._known(folder) is None:
            time.sleep(_LOOK_EVERY_S)

    def _folder(self, key: str) -> JobFolder:
        return JobFolder(self._root, check_key(key))
