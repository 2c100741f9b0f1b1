"""Jobs on this machine."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from autosbp.errors import InputError
from service.launchers._folder import JobFolder
from service.launchers._local import LocalLauncher
from service.testing.launchers import CHECKS, Place, wait_for


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("local")
    return Place(lambda: LocalLauncher(folder / "jobs"), folder, num_nodes=1)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: str(check.__name__))
def test_the_local_launcher_conforms(check: Callable[[Place], None], place: Place) -> None:
    check(place)


def test_a_job_whose_process_was_killed_has_failed(place: Place) -> None:
    launcher, key = place.make(), place.new_key()
    launcher.submit(place.spec(key, "sleep=2"), key)
    head = JobFolder(place.folder / "jobs", key).head
    assert head is not None
    os.kill(head["pid"], signal.SIGKILL)
    assert "left no word" in wait_for(launcher, key, "failed").reason


def test_this_machine_is_one_node(place: Place) -> None:
    key = place.new_key()
    with pytest.raises(InputError, match="num_nodes"):
        place.make().submit(place.spec(key, num_nodes=2), key)


@pytest.mark.parametrize("key", ["", "-a", "A", "a_b", "a/b", "..", "a" * 50])
def test_a_key_can_be_a_name_in_every_cluster(place: Place, key: str) -> None:
    with pytest.raises(InputError, match="key"):
        place.make().find(key)


def test_nothing_but_entry_points_can_be_started(tmp_path: Path, place: Place) -> None:
    with pytest.raises(InputError, match="module"):
        type(place.spec("k"))("http.server", (), tmp_path / "log", 1.0)
