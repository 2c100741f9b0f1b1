"""Jobs on Kubernetes: an Indexed Job (batch/v1) by the cluster's REST interface, a pod on each node.

The Job's name is made of its key, and the API has each name once: the second creation is answered with 409. Folder and
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

from service.launchers._base import JobSpec, LauncherError, UnavailableError
from service.launchers._cluster import ClusterLauncher
from service.launchers._folder import JobFolder

_PREFIX = "autosbp-"
_LABEL = "autosbp-key"
_MANAGED = {"app.kubernetes.io/managed-by": "autosbp"}
_IN_CLUSTER = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TIMEOUT_S = 15.0
_KEPT_S = 86_400
_LEFT_S = 120  # ours comes first, to the second, and leaves a reason

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Access:
    """Where the cluster is, and who asks: by default the pod's own service account. The token's file is read for each
    request, because clusters renew it."""

    url: str = "https://kubernetes.default.svc"
    namespace: str = "default"
    token_file: Path = _IN_CLUSTER / "token"
    ca_file: Path = _IN_CLUSTER / "ca.crt"


@dataclass(frozen=True, slots=True)
class Pods:
    """What pods are made of.

    Args:
        image: with autosbp installed for ``python``.
        claim: the PersistentVolumeClaim that holds ``mount``, a folder that the service has at the same path.
    """

    image: str
    claim: str
    mount: Path
    python: str = "python"
    python_path: str = ""


class KubernetesLauncher(ClusterLauncher):
    """Creates Jobs in one namespace; it needs the verbs create, get, list and delete on ``jobs`` there."""

    name = "kubernetes"

    def __init__(self, root: Path, *, access: Access, pods: Pods, settle_s: float = 3.0) -> None:
        super().__init__(root, settle_s)
        self._access, self._pods = access, pods
        self._path = f"/apis/batch/v1/namespaces/{access.namespace}/jobs"

    def active_keys(self) -> Sequence[str]:
        """See ``Launcher``."""
        selector = ",".join(f"{name}={value}" for name, value in _MANAGED.items())
        found = self._asked("GET", self._path, query={"labelSelector": selector}).json()["items"]
        return sorted(job["metadata"]["labels"][_LABEL] for job in found if _ended(job) is None)

    def _check(self, spec: JobSpec) -> None:
        """The cluster itself refuses what it cannot run."""

    def _submit(self, folder: JobFolder) -> str:
        """409 is the answer where the Job is there already."""
        body = manifest(folder.spec, folder, self._pods, self._access.namespace)
        self._asked("POST", self._path, body=body, expected=(409,))
        return str(body["metadata"]["name"])

    def _known(self, folder: JobFolder) -> str | None:
        found = self._asked("GET", f"{self._path}/{_PREFIX}{folder.key}", expected=(404,))
        return None if found.status_code == 404 else str(found.json()["metadata"]["name"])

    def _native(self, folder: JobFolder) -> tuple[str, str] | None:
        found = self._asked("GET", f"{self._path}/{folder.native_id}", expected=(404,))
        if found.status_code == 404:
            return None
        job = found.json()
        running = job.get("status", {}).get("ready", 0) > 0
        return _ended(job) or ("running" if running else "queued", "")

    def _cancel(self, folder: JobFolder) -> None:
        """The Job goes when its pods have gone."""
        query = {"propagationPolicy": "Foreground"}
        self._asked("DELETE", f"{self._path}/{folder.native_id}", query=query, expected=(404, 409))

    def _asked(
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
            raise LauncherError(f"kubernetes: the service account cannot be read: {error}") from None
        except httpx.HTTPError as error:
            raise UnavailableError(f"kubernetes did not answer: {error!r}") from None
        if answer.status_code == 429 or answer.status_code >= 500:
            raise UnavailableError(f"kubernetes did not answer: {answer.status_code} {_message(answer)}")
        if answer.is_error and answer.status_code not in expected:
            raise LauncherError(f"kubernetes: {answer.status_code} {_message(answer)}")
        return answer


def manifest(spec: JobSpec, folder: JobFolder, pods: Pods, namespace: str) -> Document:
    """The Job. It is never tried again, neither by the Job nor by its pods: a key runs once."""
    labels = {**_MANAGED, _LABEL: folder.key}
    job = {
        "completionMode": "Indexed",
        "completions": spec.num_nodes,
        "parallelism": spec.num_nodes,
        "backoffLimit": 0,
        "ttlSecondsAfterFinished": _KEPT_S,
        "template": {"metadata": {"labels": labels}, "spec": _pod(spec, folder, pods)},
    }
    metadata = {"name": f"{_PREFIX}{folder.key}", "namespace": namespace, "labels": labels}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": job}


def _pod(spec: JobSpec, folder: JobFolder, pods: Pods) -> Document:
    """A pod for each node, no two on one; it runs as the service's own user, whose files it shares."""
    alike = {"labelSelector": {"matchLabels": {_LABEL: folder.key}}, "topologyKey": "kubernetes.io/hostname"}
    user = {"runAsUser": os.getuid(), "runAsGroup": os.getgid(), "runAsNonRoot": os.getuid() != 0}
    return {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": math.ceil(spec.time_limit_s) + _LEFT_S,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {**user, "seccompProfile": {"type": "RuntimeDefault"}},
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [alike]}},
        "containers": [_container(spec, folder, pods)],
        "volumes": [
            {"name": "shared", "persistentVolumeClaim": {"claimName": pods.claim}},
            {"name": "shm", "emptyDir": {"medium": "Memory"}},  # ranks of a node talk through it
        ],
    }


def _container(spec: JobSpec, folder: JobFolder, pods: Pods) -> Document:
    amounts = {
        "cpu": str(spec.ranks_per_node),
        **({"nvidia.com/gpu": str(spec.gpus_per_node)} if spec.gpus_per_node else {}),
    }
    limits = {name: amount for name, amount in amounts.items() if name != "cpu"}
    command = [pods.python, "-m", "service.launchers._node", str(folder.path), folder.key, "JOB_COMPLETION_INDEX"]
    return {
        "name": "node",
        "image": pods.image,
        "command": command,
        "env": [{"name": "PYTHONPATH", "value": pods.python_path}] if pods.python_path else [],
        "resources": {"requests": amounts, **({"limits": limits} if limits else {})},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [
            {"name": "shared", "mountPath": str(pods.mount)},
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108  # the pod's own
        ],
    }


def _ended(job: Document) -> tuple[str, str] | None:
    """State and reason by the Job's conditions; None while it has none that is final."""
    for condition in job.get("status", {}).get("conditions") or ():
        if condition["status"] == "True" and condition["type"] in ("Complete", "Failed"):
            if condition["type"] == "Complete":
                return "succeeded", ""
            return "failed", f"kubernetes: {condition.get('reason', '')}: {condition.get('message', '')}"
    return None


def _message(answer: httpx.Response) -> str:
    """What a Status object says."""
    try:
        return str(answer.json()["message"])
    except (ValueError, KeyError, TypeError):
        return answer.text.strip()[-300:]
