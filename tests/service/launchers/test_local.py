"""Jobs on this machine."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from autosbp.errors import InputError
from autosbp.service.launchers._job_folder import JobFolder
from autosbp.service.launchers._local import LocalLauncher
from autosbp.service.testing.launcher_conformance import CHECKS, LauncherTestSite, wait_for

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> LauncherTestSite:
    folder = tmp_path_factory.mktemp("local")
    return LauncherTestSite(lambda: LocalLauncher(folder / "jobs"), folder, num_nodes=1)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: str(check.__name__))
def test_the_local_launcher_conforms(check: Callable[[LauncherTestSite], None], place: LauncherTestSite) -> None:
    check(place)


def test_a_job_whose_process_was_killed_has_failed(place: LauncherTestSite) -> None:
    launcher, key = place.make(), place.new_key()
    launcher.submit(place.spec(key, "sleep=2"), key)
    head = JobFolder(place.folder / "jobs", key).head
    assert head is not None
    os.kill(head["pid"], signal.SIGKILL)
    assert "the job wrote no status" in wait_for(launcher, key, "failed").reason


def test_this_machine_is_one_node(place: LauncherTestSite) -> None:
    key = place.new_key()
    with pytest.raises(InputError, match="num_nodes"):
        place.make().submit(place.spec(key, num_nodes=2), key)


@pytest.mark.parametrize("key", ["", "-a", "A", "a_b", "a/b", "..", "a" * 50])
def test_a_key_can_be_a_name_in_every_cluster(place: LauncherTestSite, key: str) -> None:
    with pytest.raises(InputError, match="key"):
        place.make().find(key)


def test_nothing_but_entry_points_can_be_started(tmp_path: Path, place: LauncherTestSite) -> None:
    with pytest.raises(InputError, match="module"):
        type(place.spec("k"))("http.server", (), tmp_path / "log", 1.0)
