"""Jobs on Ray, by the REST interface of its Jobs API (``POST /api/jobs/``; Ray 2.30 or later).

The submission id is the key, and Ray takes each once. A job of one node is its entrypoint, which Ray places where its
resources are; one of several is started by a driver (``_ray_driver``), in a placement group with a bundle on each node.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from service.launchers._base import JobSpec, LauncherError, UnavailableError
from service.launchers._cluster import ClusterLauncher
from service.launchers._folder import JobFolder

_JOBS = "/api/jobs/"
_MARK = "autosbp"
_TIMEOUT_S = 15.0
TOKEN_VARIABLE = "RAY_AUTH_TOKEN"  # noqa: S105  # the name of Ray's own variable
_STATES: Mapping[str, str] = {
    "PENDING": "queued",
    "RUNNING": "running",
    "SUCCEEDED": "succeeded",
    "STOPPED": "cancelled",
    "FAILED": "failed",
}


class RayLauncher(ClusterLauncher):
    """Submits to the dashboard of one Ray cluster.

    Args:
        url: of the dashboard, such as ``http://head:8265``. A token in RAY_AUTH_TOKEN is sent along.
        python: the interpreter on the nodes, in whose environment autosbp and Ray are installed.
        python_path: folders that are added to its path.
    """

    name = "ray"

    def __init__(
        self,
        root: Path,
        *,
        url: str,
        python: str,
        python_path: str = "",
        settle_s: float = 3.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        super().__init__(root, settle_s)
        self._python, self._python_path = python, python_path
        token = os.environ.get(TOKEN_VARIABLE)
        headers = {"authorization": f"Bearer {token}"} if token else {}
        self._url, self._headers, self._transport = url, headers, transport

    def active_keys(self) -> Sequence[str]:
        """See ``Launcher``."""
        found: list[dict[str, Any]] = self._asked("GET", _JOBS).json()
        ours = [job for job in found if (job["metadata"] or {}).get(_MARK) == job["submission_id"]]
        return sorted(job["submission_id"] for job in ours if job["status"] in ("PENDING", "RUNNING"))

    def _check(self, spec: JobSpec) -> None:
        """Ray itself waits for what it has not."""

    def _submit(self, folder: JobFolder) -> str:
        spec, key = folder.spec, folder.key
        alone = spec.num_nodes == 1
        job = {
            "entrypoint": self._entrypoint(folder, spec),
            "submission_id": key,
            "metadata": {_MARK: key},
            # What a driver starts takes the resources of its placement group.
            "entrypoint_num_cpus": spec.ranks_per_node if alone else 0,
            "entrypoint_num_gpus": spec.gpus_per_node if alone else 0,
        }
        answer = self._asked("POST", _JOBS, job)
        return str(answer.json()["submission_id"])

    def _entrypoint(self, folder: JobFolder, spec: JobSpec) -> str:
        """Ray takes a line of shell; every word of it is quoted."""
        if spec.num_nodes == 1:
            words = ["service.launchers._node", str(folder.path), folder.key, "0", "--with-parent"]
        else:
            words = ["service.launchers._ray_driver", str(folder.path), folder.key, self._python]
        variables = [f"PYTHONPATH={self._python_path}"] if self._python_path else []
        return "exec " + shlex.join(["env", *variables, self._python, "-m", *words])

    def _known(self, folder: JobFolder) -> str | None:
        return None if self._info(folder.key) is None else folder.key

    def _native(self, folder: JobFolder) -> tuple[str, str] | None:
        info = self._info(str(folder.native_id))
        if info is None:
            return None
        state = _STATES.get(str(info["status"]), "running")
        words = str(info["message"] or "") if state in ("queued", "failed") else ""
        return state, words

    def _cancel(self, folder: JobFolder) -> None:
        self._asked("POST", f"{_JOBS}{folder.native_id}/stop", missing=True)

    def _info(self, key: str) -> dict[str, Any] | None:
        answer = self._asked("GET", f"{_JOBS}{key}", missing=True)
        found: dict[str, Any] | None = None if answer.status_code == 404 else answer.json()
        return found

    def _asked(self, method: str, path: str, body: object = None, *, missing: bool = False) -> httpx.Response:
        try:
            with self._connected() as http:
                answer = http.request(method, path, json=body)
        except httpx.HTTPError as error:
            raise UnavailableError(f"ray did not answer: {error!r}") from None
        # Ray says 500 to a job that it refuses; to a question it is no answer.
        if answer.status_code in (502, 503, 504) or (answer.status_code == 500 and path != _JOBS):
            raise UnavailableError(f"ray did not answer: {answer.status_code}")
        if answer.is_error and not (missing and answer.status_code == 404):
            raise LauncherError(f"ray: {answer.status_code}: {answer.text.strip()[-500:]}")
        return answer

    def _connected(self) -> httpx.Client:
        """A connection of its own for each request: they are seldom, and launchers have no end at which to close one."""
        return httpx.Client(
            base_url=self._url,
            timeout=_TIMEOUT_S,
            headers=self._headers,
            transport=self._transport,
            trust_env=False,
        )
