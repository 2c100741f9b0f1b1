"""Trials whose ranks a launcher starts: they outlive the service, and are found again."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from autosbp.service.launchers._job_folder import JobFolder
from autosbp.service.settings import Settings
from tests.service import documents
from tests.service.conftest import running

pytestmark = pytest.mark.integration


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path / "data", cancel_grace_s=1.0, launcher="local")


def asked(client: TestClient) -> dict[str, str]:
    """A strategy on two ranks of this machine."""
    calibration = client.post("/v1/calibrations", json=documents.calibration("local:2")).json()
    search = {
        "model_id": client.post("/v1/models", json=documents.graph()).json()["id"],
        "cluster_id": calibration["cluster_id"],
        "options": documents.OPTIONS,
    }
    job = documents.wait(client, client.post("/v1/searches", json=search).json()["id"])
    return {"strategy_id": job["result"]["strategy_id"]}


@pytest.mark.long
def test_a_trial_goes_on_through_a_restart_of_the_service_with_other_settings(settings: Settings) -> None:
    with running(settings) as client:
        trial = {**asked(client), "steps": 5, "warmup": 1}
        job = client.post("/v1/trials", json=trial).json()
        root = settings.data_dir / "launches"
        documents.wait_until(lambda: any(root.glob("*/claim/head.json")))
    (folder,) = (JobFolder(root, path.parent.name) for path in root.glob("*/spec.json"))
    assert (folder.key, folder.outcome()) == (f"{job['id']}-1", None)  # the ranks are at work, the service is not
    head = folder.head
    with running(settings.model_copy(update={"trial_timeout_s": 900.0})) as client:
        done = documents.wait(client, job["id"])
        assert done["state"] == "succeeded", (done, client.get(f"{job['resource']}/logs").text)
        log = client.get(f"{job['resource']}/logs").text
        assert client.get(job["resource"]).json()["measured_step_time_s"] > 0
    assert log.count("lowered: ") == 1
    assert (folder.outcome(), folder.head) == (("succeeded", ""), head)
    assert len(list(root.iterdir())) == 1


def test_a_cancelled_trial_ends_its_ranks(settings: Settings) -> None:
    with running(settings) as client:
        job = client.post("/v1/trials", json={**asked(client), "steps": 10_000}).json()
        root = settings.data_dir / "launches"
        documents.wait_until(lambda: any(root.glob("*/claim/head.json")))
        client.post(f"/v1/jobs/{job['id']}:cancel")
        assert documents.wait(client, job["id"])["state"] == "cancelled"
    (folder,) = (JobFolder(root, path.parent.name) for path in root.glob("*/spec.json"))
    documents.wait_until(lambda: folder.outcome() == ("cancelled", "cancelled"))
