"""Jobs on Ray, by the REST interface of its Jobs API (``POST /api/jobs/``; Ray 2.30 or later).

The submission id is the key, and Ray accepts each id once. A job of one node runs as the entrypoint, which Ray places
by its resources. A job of several nodes is started by a driver (``_ray_driver``) in a placement group with one bundle
per node.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from autosbp.service.launchers._base import JobSpec, LauncherError, UnavailableError
from autosbp.service.launchers._cluster_launcher import ClusterLauncher
from autosbp.service.launchers._job_folder import JobFolder

_JOBS = "/api/jobs/"
_METADATA_KEY = "autosbp"
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
    """Submits jobs to the dashboard of one Ray cluster.

    Args:
        root: folder of the jobs' folders, shared with all nodes.
        url: of the dashboard, such as ``http://head:8265``. A token in RAY_AUTH_TOKEN is sent along.
        python: interpreter on the nodes, in whose environment autosbp and Ray are installed.
        python_path: PYTHONPATH of the nodes' processes.
        settle_s: see ``ClusterLauncher``.
        transport: of the HTTP client, for tests.
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
        found: list[dict[str, Any]] = self._request("GET", _JOBS).json()
        ours = [job for job in found if (job["metadata"] or {}).get(_METADATA_KEY) == job["submission_id"]]
        return sorted(job["submission_id"] for job in ours if job["status"] in ("PENDING", "RUNNING"))

    def _check(self, spec: JobSpec) -> None:
        """Check nothing: Ray queues a job until its resources exist."""

    def _submit(self, folder: JobFolder) -> str:
        spec, key = folder.spec, folder.key
        alone = spec.num_nodes == 1
        job = {
            "entrypoint": self._entrypoint(folder, spec),
            "submission_id": key,
            "metadata": {_METADATA_KEY: key},
            # The driver needs no resources: its nodes take those of the placement group.
            "entrypoint_num_cpus": spec.ranks_per_node if alone else 0,
            "entrypoint_num_gpus": spec.gpus_per_node if alone else 0,
        }
        answer = self._request("POST", _JOBS, job)
        return str(answer.json()["submission_id"])

    def _entrypoint(self, folder: JobFolder, spec: JobSpec) -> str:
        """Ray's entrypoint is a shell command line; every word of it is quoted."""
        if spec.num_nodes == 1:
            words = ["autosbp.service.launchers._node_process", str(folder.path), folder.key, "0", "--with-parent"]
        else:
            words = ["autosbp.service.launchers._ray_driver", str(folder.path), folder.key, self._python]
        variables = [f"PYTHONPATH={self._python_path}"] if self._python_path else []
        return "exec " + shlex.join(["env", *variables, self._python, "-m", *words])

    def _find_native_id(self, folder: JobFolder) -> str | None:
        return None if self._info(folder.key) is None else folder.key

    def _native(self, folder: JobFolder) -> tuple[str, str] | None:
        info = self._info(str(folder.native_id))
        if info is None:
            return None
        state = _STATES.get(str(info["status"]), "running")
        words = str(info["message"] or "") if state in ("queued", "failed") else ""
        return state, words

    def _cancel(self, folder: JobFolder) -> None:
        self._request("POST", f"{_JOBS}{folder.native_id}/stop", missing=True)

    def _info(self, key: str) -> dict[str, Any] | None:
        answer = self._request("GET", f"{_JOBS}{key}", missing=True)
        found: dict[str, Any] | None = None if answer.status_code == 404 else answer.json()
        return found

    def _request(self, method: str, path: str, body: object = None, *, missing: bool = False) -> httpx.Response:
        try:
            with self._http_client() as http:
                answer = http.request(method, path, json=body)
        except httpx.HTTPError as error:
            raise UnavailableError(f"ray did not respond: {error!r}") from None
        # Ray answers 500 to a job that it refuses; for any other request 500 means no answer.
        if answer.status_code in (502, 503, 504) or (answer.status_code == 500 and path != _JOBS):
            raise UnavailableError(f"ray did not respond: {answer.status_code}")
        if answer.is_error and not (missing and answer.status_code == 404):
            raise LauncherError(f"ray: {answer.status_code}: {answer.text.strip()[-500:]}")
        return answer

    def _http_client(self) -> httpx.Client:
        """One connection per request: requests are rare, and launchers have no close method."""
        return httpx.Client(
            base_url=self._url,
            timeout=_TIMEOUT_S,
            headers=self._headers,
            transport=self._transport,
            trust_env=False,
        )
