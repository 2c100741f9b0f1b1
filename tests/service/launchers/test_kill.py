"""Kill -9 of a service whose trial runs on a cluster: the ranks go on, and the next service waits for them."""

from __future__ import annotations

import signal
from pathlib import Path

import httpx
import pytest

from autosbp.service.launchers._job_folder import JobFolder
from tests.service import documents
from tests.service.launchers.test_trials import asked
from tests.service.server import Server

pytestmark = pytest.mark.integration


def test_a_trial_is_started_once_and_found_by_the_service_after_a_killed_one(tmp_path: Path) -> None:
    data, root = tmp_path / "data", tmp_path / "data" / "launches"
    with Server(data, launcher="local") as server, httpx.Client(base_url=server.url, timeout=60) as client:
        job = client.post("/v1/trials", json={**asked(client), "steps": 5, "warmup": 1}).json()
        documents.wait_until(lambda: any(root.glob("*/claim/head.json")))
        server.end(signal.SIGKILL)
    (folder,) = (JobFolder(root, path.parent.name) for path in root.glob("*/spec.json"))
    head = folder.head
    assert folder.outcome() is None  # the ranks are at work
    with Server(data, launcher="local") as server, httpx.Client(base_url=server.url, timeout=60) as client:
        done = documents.wait(client, job["id"])
        assert (done["state"], done["attempts"]) == ("succeeded", 2), done
        assert client.get(job["resource"]).json()["measured_step_time_s"] > 0
    assert (folder.outcome(), folder.head) == (("succeeded", ""), head)
    assert len(list(root.iterdir())) == 1
