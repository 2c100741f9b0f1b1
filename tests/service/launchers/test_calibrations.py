"""Calibrations whose ranks a launcher starts: they outlive the service, and are found again."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from autosbp.calibration import read_results
from autosbp.costmodel.calibration import Calibration
from autosbp.service.launchers._job_folder import JobFolder
from autosbp.service.settings import Settings
from autosbp.utils.processes import find_by_namespace_pid
from tests.service import documents
from tests.service.conftest import running

pytestmark = pytest.mark.integration


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path / "data", cancel_grace_s=1.0, launcher="local")


def begun(client: TestClient, settings: Settings, **effort: float) -> tuple[dict[str, Any], Path]:
    """The job that measures two ranks of this machine, and its results; some of them are there."""
    cluster = client.post("/v1/clusters", json={"preset": "local:2"}).json()["id"]
    job: dict[str, Any] = client.post("/v1/calibrations:measure", json={"cluster_id": cluster, **effort}).json()
    results = settings.data_dir / "launches" / f"{job['id']}-1" / "work" / "results.jsonl"
    documents.wait_until(lambda: len(read_results(results).made) > 5)
    return job, results


def test_a_calibration_goes_on_through_a_restart_of_the_service_with_other_settings(settings: Settings) -> None:
    with running(settings) as client:
        job, path = begun(client, settings, point_s=0.05)
    folder = JobFolder(settings.data_dir / "launches", f"{job['id']}-1")
    before = read_results(path)
    assert folder.outcome() is None and not before.done  # the ranks are at work, the service is not
    head = folder.head
    with running(settings.model_copy(update={"calibration_timeout_s": 900.0, "launcher_interface": "lo"})) as client:
        done = documents.wait(client, job["id"])
        assert done["state"] == "succeeded", done
        found = Calibration.from_dict(client.get(done["resource"]).json()["document"])
        kept = {each["name"]: each for each in client.get(f"/v1/artifacts?job_id={job['id']}").json()["items"]}
        assert kept.keys() == {"ranks.log", "results.jsonl"}
        assert client.get(f"/v1/artifacts/{kept['results.jsonl']['id']}/content").content == path.read_bytes()
    after = read_results(path)
    assert found.complete and (after.pids, after.begun[: len(before.begun)]) == (before.pids, before.begun)
    measured = [point for fit in found.collectives for point in fit.points]
    assert all(point in measured for points in before.points.values() for point in points)
    assert (folder.outcome(), folder.head) == (("succeeded", ""), head)
    assert len([*(settings.data_dir / "launches").iterdir()]) == 1


def test_a_cancelled_calibration_ends_its_ranks(settings: Settings) -> None:
    with running(settings) as client:
        job, _ = begun(client, settings)
        client.post(f"/v1/jobs/{job['id']}:cancel")
        assert documents.wait(client, job["id"])["state"] == "cancelled"
    folder = JobFolder(settings.data_dir / "launches", f"{job['id']}-1")
    documents.wait_until(lambda: folder.outcome() == ("cancelled", "cancelled"))


def test_a_dead_rank_fails_the_calibration_by_the_name_of_the_measurement(settings: Settings) -> None:
    with running(settings) as client:
        job, path = begun(client, settings)
        rank = find_by_namespace_pid(read_results(path).pids[1], str(path))
        assert rank is not None
        os.kill(rank, signal.SIGKILL)
        done = documents.wait(client, job["id"])
        told = done["problem"]["detail"]
        assert done["state"] == "failed"
        assert read_results(path).current in told and "results so far are in results.jsonl" in told
        assert str(settings.data_dir) not in told, "where the service keeps files is no caller's business"
        kept = client.get(f"/v1/artifacts?job_id={job['id']}").json()["items"]
        assert "results.jsonl" in {each["name"] for each in kept}
