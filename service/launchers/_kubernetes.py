"""Jobs on Kubernetes: an Indexed Job (batch/v1) created by the REST API, with one pod per node.

The Job's name contains the key, and the API accepts each name once: a second creation gets 409. The job folder and the
paths of a spec are on a volume (a PersistentVolumeClaim) that the service and all pods mount at the same path.
"""

from __future__ import annotations

import math
import os
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from autosbp.service.launchers._base import JobSpec, LauncherError, UnavailableError
from autosbp.service.launchers._cluster_launcher import ClusterLauncher
from autosbp.service.launchers._job_folder import JobFolder

_PREFIX = "autosbp-"
_LABEL = "autosbp-key"
_MANAGED = {"app.kubernetes.io/managed-by": "autosbp"}
_IN_CLUSTER = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TIMEOUT_S = 15.0
_TTL_AFTER_FINISHED_S = 86_400
_TEMPORARY, _STORAGE, _STORAGE_LEAST = "4Gi", "16Gi", "1Gi"
_EXTRA_DEADLINE_S = 120  # longer than the node process's own time limit, which comes first and records a reason

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """Address and credentials of the cluster; the defaults are the pod's own service account.

    The token file is read for every request, because clusters renew the token.
    """

    url: str = "https://kubernetes.default.svc"
    namespace: str = "default"
    token_file: Path = _IN_CLUSTER / "token"
    ca_file: Path = _IN_CLUSTER / "ca.crt"


@dataclass(frozen=True, slots=True)
class PodTemplate:
    """Template of the pods.

    Args:
        image: container image, with autosbp installed for ``python``.
        claim: the PersistentVolumeClaim that holds ``mount``.
        mount: folder that the pods and the service have at the same path.
        python: interpreter in the image.
        python_path: PYTHONPATH in the pods.
        memory: memory limit of a pod, such as ``64Gi``; "" leaves it to the namespace.
    """

    image: str
    claim: str
    mount: Path
    python: str = "python"
    python_path: str = ""
    memory: str = ""


class KubernetesLauncher(ClusterLauncher):
    """Creates Jobs in one namespace; needs the verbs create, get, list and delete on ``jobs`` there."""

    name = "kubernetes"

    def __init__(self, root: Path, *, access: ClusterAccess, pods: PodTemplate, settle_s: float = 3.0) -> None:
        super().__init__(root, settle_s)
        self._access, self._pods = access, pods
        self._path = f"/apis/batch/v1/namespaces/{access.namespace}/jobs"

    def active_keys(self) -> Sequence[str]:
        """See ``Launcher``."""
        selector = ",".join(f"{name}={value}" for name, value in _MANAGED.items())
        found = self._request("GET", self._path, query={"labelSelector": selector}).json()["items"]
        return sorted(job["metadata"]["labels"][_LABEL] for job in found if _ended(job) is None)

    def _check(self, spec: JobSpec) -> None:
        """Check nothing: the cluster refuses what it cannot run."""

    def _submit(self, folder: JobFolder) -> str:
        """Create the Job; 409 means that it exists already."""
        body = manifest(folder.spec, folder, self._pods, self._access.namespace)
        self._request("POST", self._path, body=body, expected=(409,))
        return str(body["metadata"]["name"])

    def _find_native_id(self, folder: JobFolder) -> str | None:
        found = self._request("GET", f"{self._path}/{_PREFIX}{folder.key}", expected=(404,))
        return None if found.status_code == 404 else str(found.json()["metadata"]["name"])

    def _native(self, folder: JobFolder) -> tuple[str, str] | None:
        found = self._request("GET", f"{self._path}/{folder.native_id}", expected=(404,))
        if found.status_code == 404:
            return None
        job = found.json()
        running = job.get("status", {}).get("ready", 0) > 0
        return _ended(job) or ("running" if running else "queued", "")

    def _cancel(self, folder: JobFolder) -> None:
        """Delete the Job in the foreground: it disappears after its pods."""
        query = {"propagationPolicy": "Foreground"}
        self._request("DELETE", f"{self._path}/{folder.native_id}", query=query, expected=(404, 409))

    def _request(
        self,
        method: str,
        path: str,
        *,
        body: object = None,
        query: Mapping[str, str] | None = None,
        expected: Sequence[int] = (),
    ) -> httpx.Response:
        try:
            token = self._access.token_file.read_text().strip()
            secure = self._access.url.startswith("https:")
            verify = ssl.create_default_context(cafile=str(self._access.ca_file)) if secure else False
            with httpx.Client(base_url=self._access.url, timeout=_TIMEOUT_S, verify=verify, trust_env=False) as http:
                headers = {"authorization": f"Bearer {token}"}
                answer = http.request(method, path, json=body, params=query, headers=headers)
        except OSError as error:
            raise LauncherError(f"kubernetes: cannot read the service account: {error}") from None
        except httpx.HTTPError as error:
            raise UnavailableError(f"kubernetes did not respond: {error!r}") from None
        if answer.status_code == 429 or answer.status_code >= 500:
            raise UnavailableError(f"kubernetes request failed: {answer.status_code} {_message(answer)}")
        if answer.is_error and answer.status_code not in expected:
            raise LauncherError(f"kubernetes: {answer.status_code} {_message(answer)}")
        return answer


def manifest(spec: JobSpec, folder: JobFolder, pods: PodTemplate, namespace: str) -> Document:
    """The manifest of the Job. Neither the Job nor its pods are retried: a key runs once."""
    labels = {**_MANAGED, _LABEL: folder.key}
    job = {
        "completionMode": "Indexed",
        "completions": spec.num_nodes,
        "parallelism": spec.num_nodes,
        "backoffLimit": 0,
        "ttlSecondsAfterFinished": _TTL_AFTER_FINISHED_S,
        "template": {"metadata": {"labels": labels}, "spec": _pod(spec, folder, pods)},
    }
    metadata = {"name": f"{_PREFIX}{folder.key}", "namespace": namespace, "labels": labels}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": job}


def _pod(spec: JobSpec, folder: JobFolder, pods: PodTemplate) -> Document:
    """Pod spec: one pod per node, never two on one; it runs as the service's user, whose files it shares."""
    alike = {"labelSelector": {"matchLabels": {_LABEL: folder.key}}, "topologyKey": "kubernetes.io/hostname"}
    user = {"runAsUser": os.getuid(), "runAsGroup": os.getgid(), "runAsNonRoot": os.getuid() != 0}
    return {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": math.ceil(spec.time_limit_s) + _EXTRA_DEADLINE_S,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {**user, "seccompProfile": {"type": "RuntimeDefault"}},
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [alike]}},
        "containers": [_container(spec, folder, pods)],
        "volumes": [
            {"name": "shared", "persistentVolumeClaim": {"claimName": pods.claim}},
            {"name": "shm", "emptyDir": {"medium": "Memory"}},  # shared memory for communication between a node's ranks
            {"name": "tmp", "emptyDir": {"sizeLimit": _TEMPORARY}},
        ],
    }


def _container(spec: JobSpec, folder: JobFolder, pods: PodTemplate) -> Document:
    limits = {
        **({"nvidia.com/gpu": str(spec.gpus_per_node)} if spec.gpus_per_node else {}),
        **({"memory": pods.memory} if pods.memory else {}),
        "ephemeral-storage": _STORAGE,
    }
    # No CPU limit: throttling would distort measurements.
    requests = {"cpu": str(spec.ranks_per_node), **limits, "ephemeral-storage": _STORAGE_LEAST}
    command = [
        pods.python,
        "-m",
        "autosbp.service.launchers._node_process",
        str(folder.path),
        folder.key,
        "JOB_COMPLETION_INDEX",
    ]
    return {
        "name": "node",
        "image": pods.image,
        "command": command,
        "env": [{"name": "PYTHONPATH", "value": pods.python_path}] if pods.python_path else [],
        "resources": {"requests": requests, "limits": limits},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "volumeMounts": [
            *({"name": "shared", **mount} for mount in _shared_mounts(spec, folder, pods)),
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108  # the pod's own
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108
        ],
    }


def _shared_mounts(spec: JobSpec, folder: JobFolder, pods: PodTemplate) -> list[Document]:
    """Mount only the job's own folders of the claim, not those of other jobs."""
    mount = pods.mount.resolve()
    own = [folder.path, *([] if spec.log_path.is_relative_to(folder.path) else [spec.log_path.parent.resolve()])]
    if any(path == mount or not path.is_relative_to(mount) for path in own):
        return [{"mountPath": str(pods.mount)}]
    return [{"mountPath": str(path), "subPath": str(path.relative_to(mount))} for path in own]


def _ended(job: Document) -> tuple[str, str] | None:
    """State and reason from the Job's conditions; None before a final one."""
    for condition in job.get("status", {}).get("conditions") or ():
        if condition["status"] == "True" and condition["type"] in ("Complete", "Failed"):
            if condition["type"] == "Complete":
                return "succeeded", ""
            return "failed", f"kubernetes: {condition.get('reason', '')}: {condition.get('message', '')}"
    return None


def _message(answer: httpx.Response) -> str:
    """Message of a Status object."""
    try:
        return str(answer.json()["message"])
    except (ValueError, KeyError, TypeError):
        return answer.text.strip()[-300:]
