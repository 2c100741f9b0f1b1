"""Base of all launchers: submit once, find again, report the state. Subclasses add five small methods."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from autosbp.service.launchers._base import JobSpec, JobStatus, LauncherError, UnavailableError, check_key
from autosbp.service.launchers._job_folder import JobFolder, job_status

_TRIES = 3
_LOOK_EVERY_S = 0.5


class ClusterLauncher(ABC):
    """Implements ``Launcher`` for one cluster.

    Args:
        root: folder of the jobs' folders, shared with all nodes.
        settle_s: seconds after which a submission whose answer was lost is visible in the cluster, or never was made.
    """

    name: str

    def __init__(self, root: Path, settle_s: float = 3.0) -> None:
        self._root = root.resolve()
        self._visible_within_s = settle_s

    def submit(self, spec: JobSpec, key: str) -> JobStatus:
        """See ``Launcher``. If the answer to a submission is lost, looks for the job before it tries again."""
        folder = self._folder(key)
        self._check(spec)
        folder.prepare(spec)
        lost: UnavailableError | None = None
        for _ in range(_TRIES):
            found = self.find(key)
            if found is not None:
                return found
            try:
                folder.record_native_id(self._submit(folder))
            except UnavailableError as error:
                lost = error
                self._wait_for_lost_submission(folder)
            except LauncherError:
                # A client's internal retry may be refused as a duplicate, so check whether the job exists.
                if self._find_native_id(folder) is None:
                    raise
        found = self.find(key)
        if found is None:
            raise lost or LauncherError(f"{self.name} lost job {key} after accepting it")
        return found

    def find(self, key: str) -> JobStatus | None:
        """See ``Launcher``. Asks the cluster by key only if the folder does not have the cluster's id of the job."""
        folder = self._folder(key)
        native_id = self._recorded_native_id(folder)
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
        """See ``Launcher``. The mark in the folder ends the job even if the cluster is unreachable."""
        folder = self._folder(key)
        folder.cancel()
        if self._recorded_native_id(folder) is not None:
            self._cancel(folder)

    @abstractmethod
    def active_keys(self) -> Sequence[str]:
        """See ``Launcher``."""

    @abstractmethod
    def _check(self, spec: JobSpec) -> None:
        """Raise ``InputError`` for a spec that this cluster cannot run."""

    @abstractmethod
    def _submit(self, folder: JobFolder) -> str:
        """Submit the folder's job, findable by its key from the moment it exists; return the cluster's id."""

    @abstractmethod
    def _find_native_id(self, folder: JobFolder) -> str | None:
        """Ask for the cluster's id of the job with the folder's key; None if there is none."""

    @abstractmethod
    def _native(self, folder: JobFolder) -> tuple[str, str] | None:
        """Ask for state and reason of the job ``native_id``; None if the cluster does not know it."""

    @abstractmethod
    def _cancel(self, folder: JobFolder) -> None:
        """Ask the cluster to end the job; no error if it is unknown or has ended."""

    def _status(self, folder: JobFolder, native_id: str) -> JobStatus:
        left = folder.outcome()
        if left is not None:
            return JobStatus(*left, native_id)
        return job_status(folder, self._native(folder), native_id)

    def _recorded_native_id(self, folder: JobFolder) -> str | None:
        """The cluster's id of the job, saved in the folder; None without a job."""
        if not folder.exists:
            return None
        if (known := folder.native_id) is not None:
            return known
        found = self._find_native_id(folder) or folder.token
        if found is not None:
            folder.record_native_id(found)
        return found

    def _wait_for_lost_submission(self, folder: JobFolder) -> None:
        """Wait until a job whose submission's answer was lost is visible, up to ``settle_s``."""
        until_s = time.monotonic() + self._visible_within_s
        while time.monotonic() < until_s and self._find_native_id(folder) is None:
            time.sleep(_LOOK_EVERY_S)

    def _folder(self, key: str) -> JobFolder:
        return JobFolder(self._root, check_key(key))
