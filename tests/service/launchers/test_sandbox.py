"""What jobs' processes have of the service: ranks, workers, and the children that try ops. Real ones, whose /proc is read."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from autosbp.errors import InputError
from autosbp.sandbox import Sandbox, bubblewrap_unavailable_reason, limits_unavailable_reason
from autosbp.service.jobs._worker_pool import WorkerPool
from autosbp.service.launchers._base import JobSpec
from autosbp.service.launchers._local import LocalLauncher
from autosbp.service.settings import Settings
from autosbp.service.testing.launcher_conformance import LauncherTestSite, wait_for
from tests.service import documents
from tests.service.conftest import running
from tests.service.jobs.test_worker_pool import watch
from tests.service.launchers.test_trials import asked
from tests.service.tasks import kind

pytestmark = pytest.mark.integration

SECRETS = {
    "PGPASSWORD": "hush-1",
    "AWS_SECRET_ACCESS_KEY": "hush-2",
    "AUTOSBP_DATABASE_URL": "hush-3",
    "AUTOSBP_API_KEY": "hush-4",
    "RAY_AUTH_TOKEN": "hush-5",
}
LACKING = limits_unavailable_reason() or bubblewrap_unavailable_reason()


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)


def environments(module: str) -> list[str]:
    """Of the processes that run a module now."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if module.encode() in (folder / "cmdline").read_bytes().split(b"\0"):
                found.append((folder / "environ").read_bytes().decode(errors="replace"))
    return found


@pytest.mark.parametrize("launcher", [None, "local"])
def test_ranks_of_a_trial_have_none_of_the_services_secrets(tmp_path: Path, launcher: str | None) -> None:
    # The database is given by hand: the variable of that name is a secret here.
    url = f"sqlite:///{tmp_path / 'data' / 'autosbp.db'}"
    settings = Settings(data_dir=tmp_path / "data", database_url=url, cancel_grace_s=1.0, launcher=launcher)
    module, seen = "autosbp.executor.trial_worker", list[str]()
    with running(settings) as client:
        job = client.post("/v1/trials", json={**asked(client), "steps": 10_000}).json()
        documents.wait_until(lambda: "lowered" in client.get(f"{job['resource']}/logs").text)
        seen += environments(module)
        nodes = environments("autosbp.service.launchers._node_process")
        client.post(f"/v1/jobs/{job['id']}:cancel")
        assert documents.wait(client, job["id"])["state"] == "cancelled"
        documents.wait_until(lambda: not environments(module))
    assert len(seen) >= 3 and all("PYTHONPATH=" in environment for environment in seen)
    assert (len(nodes) >= 1) == (launcher == "local")
    assert not [text for text in (*seen, *nodes) if "hush" in text]


def surroundings(children: WorkerPool, folder: Path, lane: str = "plan") -> dict[str, str]:
    job = replace(kind("surroundings"), lane=lane)
    found: dict[str, str] = children.run(job, {"told": str(folder / "told")}, folder / "outcome", watch())["result"]
    return found


def test_workers_and_the_children_that_try_ops_have_no_secrets_and_the_latter_no_privileges(tmp_path: Path) -> None:
    children = WorkerPool("wrk-bare", grace_s=1.0)
    try:
        found = surroundings(children, tmp_path)
    finally:
        children.close()
    assert "hush" not in found["worker"] + found["trial"]
    assert "AUTOSBP_JOBS_OF=wrk-bare" in found["worker"]
    assert "NoNewPrivs:\t1" in found["trial"]
    own = int(Path("/proc/self/oom_score_adj").read_text())
    worker, trial = (int(found[name].splitlines()[-2]) for name in ("worker", "trial"))
    assert own < worker < trial or trial == 1000
    descriptors = found["trial"].rpartition("Descriptors: ")[2].split(",")
    assert len(descriptors) <= 5, (
        "the pipe to the service is not among them"
    )  # 0, 1, 2, the answers, and the listing itself


@pytest.mark.parametrize("lane", ["plan", "measure"])
def test_only_processes_that_start_ranks_have_the_launchers_tokens(tmp_path: Path, lane: str) -> None:
    children = WorkerPool("wrk-lane", grace_s=1.0, variables=["HTTPS_PROXY"])
    os.environ["HTTPS_PROXY"] = "http://proxy"
    try:
        found = surroundings(children, tmp_path, lane)["worker"]
    finally:
        children.close()
        del os.environ["HTTPS_PROXY"]
    assert ("hush-5" in found) == (lane == "measure")
    assert "HTTPS_PROXY=http://proxy" in found
    assert not [value for value in list(SECRETS.values())[:4] if value in found]


@pytest.fixture
def place(tmp_path: Path) -> LauncherTestSite:
    return LauncherTestSite(lambda: LocalLauncher(tmp_path / "data" / "launches"), tmp_path, num_nodes=1)


@pytest.mark.skipif(LACKING is not None and not os.environ.get("CI"), reason=str(LACKING))
def test_a_job_sees_nothing_of_the_data_folder_but_its_own(place: LauncherTestSite) -> None:
    data, key = place.folder / "data", place.new_key()
    (data / "trials" / "own").mkdir(parents=True)
    (data / "autosbp.db").write_text("everything")
    steps = tuple(f"show={data / name}" for name in ("autosbp.db", "launches", f"launches/{key}/spec.json"))
    sandbox = Sandbox("bubblewrap", hidden=(str(data),)).to_dict()
    log = data / "trials" / "own" / "ranks.log"
    spec = JobSpec(
        "autosbp.service.launchers.probe_entry", (*steps, "show=/proc/self/environ"), log, 60.0, sandbox=sandbox
    )
    place.make().submit(spec, key)
    wait_for(place.make(), key, "succeeded")
    first, second, third, *environ = place.make().logs(key).decode().splitlines()
    assert all(line.endswith(": No such file or directory") for line in (first, second, third))
    assert "AUTOSBP_OUTLIVES=1" in environ and not [line for line in environ if "hush" in line]


def test_a_node_whose_processes_print_without_end_keeps_the_first_and_the_last(place: LauncherTestSite) -> None:
    key, most = place.new_key(), 2**17
    log = place.folder / "logs" / "ranks.log"
    log.parent.mkdir()
    sandbox = Sandbox(log_bytes=most).to_dict()
    place.make().submit(
        JobSpec("autosbp.service.launchers.probe_entry", ("flood=20000000",), log, 60.0, sandbox=sandbox), key
    )
    wait_for(place.make(), key, "succeeded")
    lines = log.read_text().splitlines()
    assert log.stat().st_size < most + 100
    assert (int(lines[0]), int(lines[-1])) == (0, 20_000_000 // 64 - 1)
    assert sum("bytes of the log omitted" in line for line in lines) == 1
    left = sum(path.stat().st_size for path in place.folder.rglob("*") if path.is_file())
    assert left < 2 * most, "there is no other copy"


def test_a_sandbox_that_does_not_work_on_the_node_fails_the_job_and_says_so(place: LauncherTestSite) -> None:
    key = place.new_key()
    sandbox = {**Sandbox().to_dict(), "user": "nobody-of-this-name"}
    log = place.folder / "ranks.log"
    place.make().submit(JobSpec("autosbp.service.launchers.probe_entry", ("say=up",), log, 60.0, sandbox=sandbox), key)
    assert "rank_user" in wait_for(place.make(), key, "failed").reason
    assert not log.exists()


def test_a_service_refuses_a_sandbox_that_does_not_work(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "data", database_url="sqlite://", rank_user="nobody-of-this-name")
    with pytest.raises(InputError, match="rank_user"), running(settings):
        pass


def test_a_service_without_bubblewrap_says_what_that_means(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    url = f"sqlite:///{tmp_path / 'data' / 'autosbp.db'}"
    with running(Settings(data_dir=tmp_path / "data", database_url=url, sandbox="limits")) as client:
        assert isinstance(client, TestClient)
    assert "ranks are not sandboxed" in caplog.text
