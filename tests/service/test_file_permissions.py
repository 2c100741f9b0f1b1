"""Nothing that the service stores is for other users of the machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from autosbp.client import Client
from autosbp.service.file_permissions import restrict_permissions
from autosbp.service.settings import Settings
from tests.service import documents
from tests.service.server import ROOT, Server

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def usual_mask() -> object:
    mask = os.umask(0o022)
    yield
    os.umask(mask)


def open_to_others(folder: Path) -> list[str]:
    return [str(path) for path in (folder, *folder.rglob("*")) if path.lstat().st_mode & 0o077]


def test_a_service_that_has_searched_and_measured_has_left_nothing_that_others_can_read(tmp_path: Path) -> None:
    data = tmp_path / "new" / "data"
    with Server(data) as server, Client(server.url) as client:
        model, cluster = client.post_model(documents.graph()), client.post_cluster("local:2")
        job = client.wait(client.search(model, cluster, options=documents.OPTIONS))
        assert client.wait(client.trial(job.result["strategy_id"], steps=2)).state == "succeeded"
        assert open_to_others(tmp_path / "new") == []
        assert {"autosbp.db", "autosbp.db-wal", "trials", "artifacts"} <= {each.name for each in data.iterdir()}


def test_what_earlier_releases_left_open_is_closed_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    elsewhere = tmp_path / "elsewhere.db"
    for name in ("autosbp.db", "autosbp.db-wal", "jobs.db", "session.secret", "notes.txt"):
        (tmp_path / name).touch()
    for path in (elsewhere, tmp_path / "elsewhere.db-shm"):
        path.touch()
    (tmp_path / "trials").mkdir()
    (tmp_path / "jobs").symlink_to(tmp_path)
    restrict_permissions(Settings(data_dir=tmp_path, database_url=f"sqlite:///{elsewhere}"))
    assert sorted(open_to_others(tmp_path)) == sorted(map(str, (tmp_path / "jobs", tmp_path / "notes.txt")))
    assert "elsewhere.db" in caplog.text and "notes.txt" not in caplog.text


def test_a_folder_that_was_there_stays_as_its_owner_made_it(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir(mode=0o755)
    server = Server(tmp_path / "mine")
    assert server.begins()
    server.end(signal.SIGTERM)
    assert open_to_others(tmp_path / "mine") == [str(tmp_path / "mine")]


def test_memory_and_environment_of_a_service_are_closed_to_its_user(tmp_path: Path) -> None:
    program = (
        "import ctypes, sys; from pathlib import Path; from autosbp.service.file_permissions import restrict_permissions; "
        "from autosbp.service.settings import Settings; restrict_permissions(Settings(data_dir=Path(sys.argv[1]))); "
        "sys.exit(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))"  # PR_GET_DUMPABLE
    )
    assert subprocess.run([sys.executable, "-c", program, str(tmp_path / "data")], cwd=ROOT).returncode == 0
