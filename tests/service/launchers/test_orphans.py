"""The sweep: what is ended on the cluster because nobody waits for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from autosbp.errors import InputError
from autosbp.service.app import create_app
from autosbp.service.launchers._base import JobSpec
from autosbp.service.launchers._local import LocalLauncher
from autosbp.service.services.orphaned_jobs import orphans
from autosbp.service.settings import Settings
from autosbp.service.testing.launcher_conformance import wait_for
from tests.cli.processes import Started
from tests.service import documents
from tests.service.conftest import running

pytestmark = pytest.mark.integration

FINAL = {"job-done": True, "job-going": False}


@pytest.mark.parametrize(
    ("keys", "found"),
    [
        ([], []),
        (["job-done-1"], ["job-done-1"]),
        (["job-going-1"], []),
        (["job-going-1", "job-going-10", "job-going-2"], ["job-going-1", "job-going-2"]),
        (["job-others-1", "job-others-2", "try-it", "1"], []),
    ],
)
def test_orphans_are_of_jobs_that_ended_and_of_earlier_attempts(keys: list[str], found: list[str]) -> None:
    assert orphans(keys, FINAL.get) == found


def test_services_and_workers_end_what_nobody_waits_for(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "data", launcher="local")
    launcher = LocalLauncher(settings.data_dir / "launches")
    with running(settings) as client:
        calibrated = client.post("/v1/models", json=documents.graph()).json()["id"]
        cluster = client.post("/v1/clusters", json=documents.cluster()).json()["id"]
        asked = {"model_id": calibrated, "cluster_id": cluster, "options": documents.OPTIONS}
        job = documents.wait(client, client.post("/v1/searches", json=asked).json()["id"])
    ended, again, others = f"{job['id']}-1", f"{job['id']}-2", "job-of-another-1"

    def submit(key: str) -> None:
        launcher.submit(
            JobSpec("autosbp.service.launchers.probe_entry", ("sleep=60",), tmp_path / f"{key}.log", 100.0), key
        )

    submit(others)
    submit(ended)
    with running(settings):
        wait_for(launcher, ended, "cancelled")
    submit(again)
    worker = {"AUTOSBP_LAUNCHER": "local", "AUTOSBP_DATA_DIR": str(settings.data_dir)}
    with Started("work", cwd=tmp_path, **worker):
        wait_for(launcher, again, "cancelled")
    assert launcher.status(others).state == "running"
    launcher.cancel(others)
    wait_for(launcher, others, "cancelled")


def test_a_launcher_that_lacks_a_setting_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="AUTOSBP_KUBERNETES_IMAGE"):
        create_app(Settings(data_dir=tmp_path, launcher="kubernetes"))
