"""Jobs on a real Ray of two nodes."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from autosbp.service.launchers._ray import RayLauncher
from autosbp.service.testing.launcher_conformance import CHECKS, LauncherTestSite, wait_for
from autosbp.service.testing.ray import LocalRay

ROOT = Path(__file__).parents[3]
pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None and not os.environ.get("CI"),
        reason="Ray is not installed: autosbp[ray]",
    ),
]


@pytest.fixture(scope="module")
def ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRay]:
    with LocalRay(tmp_path_factory.mktemp("ray")) as cluster:
        yield cluster


@pytest.fixture
def place(ray: LocalRay, tmp_path: Path) -> LauncherTestSite:
    def make() -> RayLauncher:
        return RayLauncher(tmp_path / "jobs", url=ray.url, python=sys.executable, python_path=str(ROOT))

    return LauncherTestSite(make, tmp_path, num_nodes=2)


def test_the_ray_launcher_conforms_and_a_lost_answer_makes_no_second_job(
    ray: LocalRay, place: LauncherTestSite
) -> None:
    """All checks at once: a job on Ray takes seconds to begin, most of it waiting."""
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(check, place) for check in CHECKS]
        waiting.append(pool.submit(check_that_a_lost_answer_makes_no_second_job, ray, place))
        for done in waiting:
            done.result()


def check_that_a_lost_answer_makes_no_second_job(ray: LocalRay, place: LauncherTestSite) -> None:
    """The request arrives, its answer does not."""

    class Losing(httpx.BaseTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            with httpx.HTTPTransport() as wire:
                answer = wire.handle_request(request)
                answer.read()
            if request.method == "POST":
                raise httpx.ReadError("lost", request=request)
            return answer

    key = place.new_key()
    launcher = RayLauncher(
        place.folder / "jobs", url=ray.url, python=sys.executable, python_path=str(ROOT), transport=Losing()
    )
    begun = launcher.submit(place.spec(key, place.counted(key)[0]), key)
    assert begun.native_id == key
    wait_for(place.make(), key, "succeeded")
    assert place.counted(key)[1] == ["0"]
