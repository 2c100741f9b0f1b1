"""What a real Slurm's accounts say of jobs that its controller has forgotten, and whose nodes have left no word."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from autosbp.service.launchers._base import JobStatus, UnavailableError
from autosbp.service.launchers._job_folder import JobFolder
from autosbp.service.launchers._slurm import SlurmLauncher
from autosbp.service.testing import accounting
from autosbp.service.testing.launcher_conformance import LauncherTestSite
from autosbp.service.testing.slurm import VirtualSlurm, missing_programs
from tests.service.documents import wait_until

ROOT = Path(__file__).parents[3]
LACKS = [*missing_programs(), *accounting.missing_programs()]
pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        bool(LACKS) and not os.environ.get("CI"),
        reason=f"a virtual Slurm with accounts needs {', '.join(LACKS)}; scripts/system installs it",
    ),
]


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[VirtualSlurm]:
    with VirtualSlurm(tmp_path / "slurm", accounts=True) as cluster:
        monkeypatch.setenv("SLURM_CONF", str(cluster.conf))
        yield cluster


def test_accounts_tell_how_forgotten_jobs_have_ended(slurm: VirtualSlurm, tmp_path: Path) -> None:
    """One that ends well, fails, is ended by an administrator, reaches Slurm's time limit; and one whose submission's
    answer was lost. Slurm looks at time limits every 30 s."""

    def make() -> SlurmLauncher:
        return SlurmLauncher(tmp_path / "jobs", python=sys.executable, python_path=str(ROOT), exclusive=False)

    launcher, place = make(), LauncherTestSite(make, tmp_path, num_nodes=1)
    keys = {name: place.new_key() for name in ("late", "ended", "good", "bad", "lost")}
    folders = {name: JobFolder(tmp_path / "jobs", key) for name, key in keys.items()}
    long = ("say=up", "sleep=100")
    steps = {"late": long, "ended": long, "good": ("say=done",), "bad": ("exit=5",), "lost": ("say=done",)}
    for name in ("late", "ended", "good", "bad"):
        launcher.submit(place.spec(keys[name], *steps[name]), keys[name])
    folders["lost"].prepare(place.spec(keys["lost"], *steps["lost"]))
    lost_id = launcher._submit(folders["lost"])
    for name in ("late", "ended"):
        # Slurm says "running" before a job's step has begun; one that may not begin in time has failed, not timed out.
        wait_until(lambda key=keys[name]: launcher.logs(key) == b"node 0: up\n")
    slurm.client("scontrol", "update", f"JobId={folders['late'].native_id}", "EndTime=now+1seconds")
    slurm.client("scancel", str(folders["ended"].native_id))

    wait_until(lambda: not slurm.client("squeue", "--noheader", "--states=all", "--format=%i").strip())
    assert launcher.status(keys["bad"]).reason == "exit code 5", "the nodes' own word says more"
    for folder in folders.values():
        for left in folder.path.glob("ended-*.json"):
            left.unlink()

    def told(name: str) -> JobStatus:
        found = launcher.find(keys[name])
        assert found is not None
        return found

    found = {name: told(name) for name in keys}
    assert {name: (each.state, each.reason) for name, each in found.items()} == {
        "late": ("failed", "slurm: TIMEOUT"),
        "ended": ("cancelled", ""),
        "good": ("succeeded", ""),
        "bad": ("failed", "slurm: FAILED"),
        "lost": ("succeeded", ""),
    }
    assert found["lost"].native_id == lost_id
    slurm.stop_accounting()
    with pytest.raises(UnavailableError, match="sacct failed"):
        launcher.status(keys["good"])
    key = place.new_key()
    assert launcher.submit(place.spec(key), key).state in ("queued", "running", "succeeded")
