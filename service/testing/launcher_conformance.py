"""Conformance suite of launchers. Each check takes a ``LauncherTestSite``; a test suite runs all of them on one.

@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_launcher_conforms(check, place):
    check(place)
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from autosbp.errors import InputError
from autosbp.service.launchers._base import JobSpec, JobStatus, Launcher, LauncherError, node_log

_LONGEST_S = 60.0
_LOOK_S = 0.1


@dataclass(frozen=True, slots=True)
class LauncherTestSite:
    """A cluster on which a launcher is tested.

    Args:
        make: creates a launcher of the cluster, as a starting service does.
        folder: on a file system that the cluster's nodes share.
        num_nodes: number of nodes that a job may take.
    """

    make: Callable[[], Launcher]
    folder: Path
    num_nodes: int

    def new_key(self) -> str:
        """A key that was not used before."""
        return f"try-{secrets.token_hex(6)}"

    def spec(self, key: str, *steps: str, num_nodes: int = 1, time_limit_s: float = 100.0) -> JobSpec:
        """A job that runs these steps of ``autosbp.service.launchers.probe_entry``."""
        log = self.folder / f"{key}.log"
        return JobSpec("autosbp.service.launchers.probe_entry", steps, log, time_limit_s, num_nodes=num_nodes)

    def counted(self, key: str) -> tuple[str, list[str]]:
        """Return a step that counts its executions, and the nodes that have executed it so far."""
        path = self.folder / f"{key}.count"
        return f"count={path}", path.read_text().split() if path.exists() else []


def wait_for(launcher: Launcher, key: str, *states: str) -> JobStatus:
    """Wait until the job is in one of these states and return its status."""
    until_s = time.monotonic() + _LONGEST_S
    while (found := launcher.status(key)).state not in states:
        assert not found.is_final, found
        assert time.monotonic() < until_s, found
        time.sleep(_LOOK_S)
    return found


def check_a_job_runs_once_and_its_log_can_be_followed(place: LauncherTestSite) -> None:
    launcher, key = place.make(), place.new_key()
    step, _ = place.counted(key)
    spec = place.spec(key, step, "say=first", "sleep=1", "say=last")
    assert launcher.find(key) is None
    assert launcher.logs(key) == b""
    begun = launcher.submit(spec, key)
    assert begun.state in ("queued", "running", "succeeded")
    until_s = time.monotonic() + _LONGEST_S
    while not (first := launcher.logs(key)):
        assert time.monotonic() < until_s
        time.sleep(_LOOK_S)
    assert first == b"node 0: first\n"
    assert key in launcher.active_keys()
    ended = wait_for(launcher, key, "succeeded")
    assert (ended.native_id, ended.reason) == (begun.native_id, "")
    assert launcher.logs(key, len(first)) == b"node 0: last\n"
    assert place.counted(key)[1] == ["0"]
    until_s = time.monotonic() + _LONGEST_S
    while key in launcher.active_keys():
        assert time.monotonic() < until_s
        time.sleep(_LOOK_S)


def check_a_key_is_one_job_however_often_it_is_submitted(place: LauncherTestSite) -> None:
    key = place.new_key()
    step, _ = place.counted(key)
    spec = place.spec(key, step, "sleep=1")
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda launcher: launcher.submit(spec, key), [place.make() for _ in range(4)]))
    launcher = place.make()
    wait_for(launcher, key, "succeeded")
    assert launcher.submit(spec, key).state == "succeeded"
    assert len(place.counted(key)[1]) == 1, found
    try:
        launcher.submit(replace(spec, time_limit_s=1.0), key)
    except InputError as error:
        assert error.field == "key"
    else:
        raise AssertionError("other work was accepted under the same key")


def check_another_process_finds_the_job_by_its_key(place: LauncherTestSite) -> None:
    key = place.new_key()
    begun = place.make().submit(place.spec(key, "sleep=1", "say=done"), key)
    again = place.make().find(key)
    assert again is not None
    assert again.native_id == begun.native_id
    wait_for(place.make(), key, "succeeded")
    ended = place.make().find(key)
    assert ended is not None
    assert (ended.state, ended.native_id) == ("succeeded", begun.native_id)
    unknown = place.new_key()
    assert place.make().find(unknown) is None
    try:
        place.make().status(unknown)
    except LauncherError as error:
        assert unknown in str(error)
    else:
        raise AssertionError("a job that does not exist has a status")


def check_a_failure_says_how(place: LauncherTestSite) -> None:
    launcher, key = place.make(), place.new_key()
    launcher.submit(place.spec(key, "say=boom", "exit=5"), key)
    ended = wait_for(launcher, key, "failed")
    assert "exit code 5" in ended.reason
    assert launcher.logs(key) == b"node 0: boom\n"
    assert launcher.submit(place.spec(key, "say=boom", "exit=5"), key) == ended  # a failed job is not retried


def check_a_job_ends_at_its_time_limit(place: LauncherTestSite) -> None:
    launcher, key = place.make(), place.new_key()
    launcher.submit(place.spec(key, "sleep=100", time_limit_s=1.5), key)
    assert wait_for(launcher, key, "failed").reason == "timed out after 1.5 s"


def check_a_cancelled_job_ends_and_stays_so(place: LauncherTestSite) -> None:
    launcher, key = place.make(), place.new_key()
    step, _ = place.counted(key)
    spec = place.spec(key, "say=up", "sleep=100", step)
    launcher.submit(spec, key)
    while not launcher.logs(key):
        time.sleep(_LOOK_S)
    place.make().cancel(key)
    launcher.cancel(key)
    wait_for(launcher, key, "cancelled")
    launcher.cancel(key)
    assert launcher.submit(spec, key).state == "cancelled"
    assert place.counted(key)[1] == []
    launcher.cancel(place.new_key())


def check_a_job_that_was_cancelled_at_once_has_not_run_or_was_ended(place: LauncherTestSite) -> None:
    launcher, key = place.make(), place.new_key()
    step, _ = place.counted(key)
    launcher.submit(place.spec(key, "sleep=30", step), key)
    launcher.cancel(key)
    wait_for(launcher, key, "cancelled")
    assert place.counted(key)[1] == []


def check_every_node_runs_once_and_a_failing_one_ends_all(place: LauncherTestSite) -> None:
    launcher, good, bad = place.make(), place.new_key(), place.new_key()
    step, _ = place.counted(good)
    nodes = place.num_nodes
    wanted = [str(node) for node in range(nodes)]
    spec = place.spec(good, step, "say=here", num_nodes=nodes)
    launcher.submit(spec, good)
    wait_for(launcher, good, "succeeded")
    assert sorted(place.counted(good)[1]) == wanted
    for node in range(nodes):
        assert node_log(spec.log_path, node).read_text() == f"node {node}: here\n"
    launcher.submit(place.spec(bad, f"fail={nodes - 1}", "sleep=100", num_nodes=nodes), bad)
    assert "exit code 7" in wait_for(launcher, bad, "failed").reason


CHECKS: tuple[Callable[[LauncherTestSite], None], ...] = (
    check_a_job_runs_once_and_its_log_can_be_followed,
    check_a_key_is_one_job_however_often_it_is_submitted,
    check_another_process_finds_the_job_by_its_key,
    check_a_failure_says_how,
    check_a_job_ends_at_its_time_limit,
    check_a_cancelled_job_ends_and_stays_so,
    check_a_job_that_was_cancelled_at_once_has_not_run_or_was_ended,
    check_every_node_runs_once_and_a_failing_one_ends_all,
)
