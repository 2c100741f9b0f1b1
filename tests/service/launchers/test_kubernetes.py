"""Jobs on Kubernetes, as far as they can be tried without one: manifests against the published schema, and the client
against a stand-in for the API that runs pods as processes of this machine."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from autosbp.service.launchers._base import JobSpec, LauncherError, UnavailableError
from autosbp.service.launchers._job_folder import JobFolder
from autosbp.service.launchers._kubernetes import ClusterAccess, KubernetesLauncher, PodTemplate, manifest
from autosbp.service.testing.launcher_conformance import CHECKS, LauncherTestSite, wait_for
from tests.service.launchers.kubernetes_api import SCHEMA, TOKEN, Cluster

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as started:
        yield started


def launcher(cluster: Cluster, folder: Path, token: str = TOKEN) -> KubernetesLauncher:
    (folder / "token").write_text(f"{token}\n")
    access = ClusterAccess(cluster.url, "lab", folder / "token")
    pods = PodTemplate("autosbp:1", "shared", folder, sys.executable, str(ROOT))
    return KubernetesLauncher(folder / "jobs", access=access, pods=pods, settle_s=1.0)


@pytest.fixture
def place(cluster: Cluster, tmp_path: Path) -> LauncherTestSite:
    return LauncherTestSite(lambda: launcher(cluster, tmp_path), tmp_path, num_nodes=2)


@pytest.mark.some(3)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: str(check.__name__))
def test_the_kubernetes_launcher_conforms(check: Callable[[LauncherTestSite], None], place: LauncherTestSite) -> None:
    check(place)


def test_a_lost_answer_makes_no_second_job(
    cluster: Cluster, place: LauncherTestSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, key = cluster.num_created, place.new_key()
    monkeypatch.setattr(cluster, "lose_answers", True)
    place.make().submit(place.spec(key, place.counted(key)[0]), key)
    wait_for(place.make(), key, "succeeded")
    assert (cluster.num_created - before, place.counted(key)[1]) == (1, ["0"])


def test_what_the_api_refuses_says_why(cluster: Cluster, place: LauncherTestSite, tmp_path: Path) -> None:
    key = place.new_key()
    with pytest.raises(LauncherError, match="401 Unauthorized"):
        launcher(cluster, tmp_path, "another").submit(place.spec(key), key)
    (tmp_path / "token").unlink()
    lacking = KubernetesLauncher(
        tmp_path / "jobs",
        access=ClusterAccess(cluster.url, "lab", tmp_path / "token"),
        pods=PodTemplate("a", "b", tmp_path),
    )
    with pytest.raises(LauncherError, match="service account"):
        lacking.active_keys()


def test_a_cluster_that_is_away_is_asked_again(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    away = KubernetesLauncher(
        tmp_path / "jobs",
        access=ClusterAccess("http://127.0.0.1:9", "lab", tmp_path / "token"),
        pods=PodTemplate("a", "b", tmp_path),
    )
    with pytest.raises(UnavailableError):
        away.active_keys()


def made(tmp_path: Path, **of_spec: Any) -> dict[str, Any]:
    folder = JobFolder(tmp_path, "a" * 49)
    log = folder.path / "work" / "ranks.log"
    spec = JobSpec("autosbp.executor.trial_worker", ("request", "result"), log, 90.5, **of_spec)
    return manifest(spec, folder, PodTemplate("autosbp:1", "shared", tmp_path), "lab")


@pytest.mark.parametrize("of_spec", [{}, {"num_nodes": 4, "ranks_per_node": 8, "gpus_per_node": 8}])
def test_a_manifest_is_a_job_of_the_published_schema(tmp_path: Path, of_spec: dict[str, Any]) -> None:
    document = made(tmp_path, **of_spec)
    Draft202012Validator.check_schema(SCHEMA)
    assert [error.message for error in Draft202012Validator(SCHEMA).iter_errors(document)] == []
    assert len(document["metadata"]["name"]) <= 57  # pods are named after it, with an index, in 63 characters
    job = document["spec"]
    assert (job["completionMode"], job["completions"], job["parallelism"]) == (
        "Indexed",
        *2 * (of_spec.get("num_nodes", 1),),
    )
    assert (job["backoffLimit"], job["template"]["spec"]["restartPolicy"]) == (0, "Never")
    (container,) = job["template"]["spec"]["containers"]
    limits = container["resources"].get("limits", {})
    assert limits == {**({"nvidia.com/gpu": "8"} if of_spec else {}), "ephemeral-storage": "16Gi"}


def test_a_pod_has_the_folders_of_its_own_job_and_no_privileges(tmp_path: Path) -> None:
    pod = made(tmp_path)["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    shared = [mount for mount in container["volumeMounts"] if mount["name"] == "shared"]
    assert shared == [{"name": "shared", "mountPath": str(tmp_path / ("a" * 49)), "subPath": "a" * 49}]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert (pod["automountServiceAccountToken"], pod["securityContext"]["seccompProfile"]) == (
        False,
        {"type": "RuntimeDefault"},
    )
    writable = {mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] != "shared"}
    assert writable == {"/tmp", "/dev/shm"}  # noqa: S108  # the pod's own


def test_the_schema_refuses_what_a_job_does_not_have(tmp_path: Path) -> None:
    document = made(tmp_path)
    document["spec"]["template"]["spec"]["containers"][0]["volumes"] = []
    document["spec"]["completions"] = "1"
    messages = [error.message for error in Draft202012Validator(SCHEMA).iter_errors(document)]
    assert len(messages) == 2
