"""Jobs on a real Slurm with three virtual nodes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from autosbp import api
from autosbp.calibration import read_results
from autosbp.cli import app
from autosbp.costmodel.calibration import Calibration
from autosbp.service.launchers._base import UnavailableError
from autosbp.service.launchers._job_folder import JobFolder
from autosbp.service.launchers._slurm import SlurmLauncher
from autosbp.service.settings import Settings
from autosbp.service.testing.launcher_conformance import CHECKS, LauncherTestSite, wait_for
from autosbp.service.testing.slurm import VirtualSlurm, missing_programs
from benchmarks.launchers import LOSSES, lose_submissions
from tests.service import documents
from tests.service.conftest import running

ROOT = Path(__file__).parents[3]
LACKS = missing_programs()
pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.skipif(
        bool(LACKS) and not os.environ.get("CI"),
        reason=f"a virtual Slurm needs {', '.join(LACKS)}; scripts/system installs it",
    ),
]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VirtualSlurm]:
    with VirtualSlurm(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@pytest.fixture
def place(slurm: VirtualSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LauncherTestSite:
    monkeypatch.setenv("SLURM_CONF", str(slurm.conf))

    def make() -> SlurmLauncher:
        return SlurmLauncher(tmp_path / "jobs", python=sys.executable, python_path=str(ROOT))

    return LauncherTestSite(make, tmp_path, num_nodes=2)


@pytest.mark.some(3)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: str(check.__name__))
def test_the_slurm_launcher_conforms(check: Callable[[LauncherTestSite], None], place: LauncherTestSite) -> None:
    check(place)


@pytest.mark.some(2)
@pytest.mark.parametrize(("way", "count"), [*zip(LOSSES, (3, 1, 1, 1), strict=True)])
def test_lost_submissions_make_one_job_each(slurm: VirtualSlurm, tmp_path: Path, way: str, count: int) -> None:
    """``make launchers`` does it 20 times each."""
    found = lose_submissions(slurm, tmp_path / "lost", way, count)
    assert (found["jobs"], found["lost"], found["twice"]) == (count, 0, 0)


def test_crossed_submissions_run_once(slurm: VirtualSlurm, place: LauncherTestSite) -> None:
    """The same job twice, as when a submission was thought lost and comes late: the second finds the key claimed."""
    launcher, key = place.make(), place.new_key()
    assert isinstance(launcher, SlurmLauncher)
    folder = JobFolder(place.folder / "jobs", key)
    folder.prepare(place.spec(key, place.counted(key)[0], "sleep=1"))
    first, second = launcher._submit(folder), launcher._submit(folder)
    assert wait_for(launcher, key, "succeeded").native_id == first
    until = ("COMPLETED", "FAILED")
    while (state := slurm.client("squeue", "-h", "-t", "all", "-j", second, "-o", "%T").strip()) not in until:
        assert state
    assert (state, place.counted(key)[1]) == ("FAILED", ["0"])


def test_a_job_is_found_after_the_controller_was_away(slurm: VirtualSlurm, place: LauncherTestSite) -> None:
    launcher, key = place.make(), place.new_key()
    begun = launcher.submit(place.spec(key, "say=up", "sleep=3"), key)
    while not launcher.logs(key):
        pass
    slurm.stop_controller()
    try:
        with pytest.raises(UnavailableError, match="squeue failed"):
            launcher.status(key)
    finally:
        slurm.start_controller()
    slurm.wait_until_ready()
    assert wait_for(place.make(), key, "succeeded").native_id == begun.native_id


def test_a_job_gets_nothing_of_the_services_environment(
    place: LauncherTestSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOSBP_DATABASE_URL", "postgresql://user:secret@host/name")
    launcher, key = place.make(), place.new_key()
    launcher.submit(place.spec(key, "tell=AUTOSBP_DATABASE_URL"), key)
    wait_for(launcher, key, "succeeded")
    assert launcher.logs(key) == b"AUTOSBP_DATABASE_URL=\n"


def test_what_slurm_refuses_says_why(place: LauncherTestSite, tmp_path: Path) -> None:
    launcher = SlurmLauncher(tmp_path / "jobs", python=sys.executable, options=["--partition=nowhere"])
    key = place.new_key()
    with pytest.raises(Exception, match="invalid partition"):
        launcher.submit(place.spec(key), key)
    assert launcher.find(key) is None


@pytest.mark.long
def test_a_calibration_of_the_command_line_measures_two_nodes_and_goes_on_where_it_ended(
    slurm: VirtualSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real ranks, one on each node. The first run has not enough time; the job that goes on is another one."""
    for name, value in (("LAUNCHER_DIR", str(tmp_path / "jobs")), ("LAUNCHER_INTERFACE", "lo")):
        monkeypatch.setenv(f"AUTOSBP_{name}", value)
    monkeypatch.setenv("SLURM_CONF", str(slurm.conf))
    output = tmp_path / "calib.json"
    asked = ["calibrate", "--cluster", "local:2x1", "--launcher", "slurm", "--sizes", "1024,65536,1048576"]
    asked += ["--budget", "8", "-o", str(output)]
    done = CliRunner().invoke(app, [*asked, "--timeout", "7"], catch_exceptions=False)
    kept = read_results(tmp_path / "calib.json.partial" / "results.jsonl")
    assert done.exit_code == 4 and not output.exists() and not kept.done, done.stderr
    assert "the same command continues this run" in done.stderr
    done = CliRunner().invoke(app, asked, catch_exceptions=False)
    assert done.exit_code == 0, done.stderr
    found = Calibration.from_dict(json.loads(output.read_text()))
    assert {fit.group_shape for fit in found.collectives} == {(2, 1)} and found.complete
    measured = [point for fit in found.collectives for point in fit.points]
    assert all(point in measured for points in kept.points.values() for point in points)
    assert not (tmp_path / "calib.json.partial").exists()
    assert len(list((tmp_path / "jobs").glob("*/spec.json"))) == 2


def test_a_trial_of_the_command_line_trains_on_two_nodes(
    slurm: VirtualSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real ranks, one on each node."""
    for name, value in (("LAUNCHER_DIR", str(tmp_path / "jobs")), ("LAUNCHER_INTERFACE", "lo")):
        monkeypatch.setenv(f"AUTOSBP_{name}", value)
    monkeypatch.setenv("SLURM_CONF", str(slurm.conf))
    graph = api.load_graph(documents.graph())
    plan = api.make_plan(
        graph, api.load_cluster("local:2x1"), options=api.PlanOptions.from_dict({**documents.OPTIONS, "stages": 1})
    )
    for name, document in (("plan", plan.to_dict()), ("graph", documents.graph())):
        (tmp_path / f"{name}.json").write_text(json.dumps(document))
    asked = ["trial", f"{tmp_path}/plan.json", "--graph", f"{tmp_path}/graph.json", "--launcher", "slurm"]
    done = CliRunner().invoke(app, [*asked, "--steps", "2", "--warmup", "1", "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["num_ranks"], result["collectives_match"]) == (2, True)
    assert "lowered: " in done.stderr
    (launch,) = (JobFolder(tmp_path / "jobs", path.parent.name) for path in (tmp_path / "jobs").glob("*/spec.json"))
    assert (launch.spec.num_nodes, launch.outcome()) == (2, ("succeeded", ""))


@pytest.mark.long
def test_a_calibration_of_the_service_measures_two_nodes_and_keeps_no_search_waiting(
    slurm: VirtualSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CONF", str(slurm.conf))
    settings = Settings(data_dir=tmp_path / "data", launcher="slurm", launcher_interface="lo")
    with running(settings) as client:
        cluster = client.post("/v1/clusters", json={"preset": "local:2x1"}).json()["id"]
        asked = {"cluster_id": cluster, "point_s": 0.001, "variants": False}
        job = client.post("/v1/calibrations:measure", json=asked).json()
        documents.wait(client, job["id"], ("running",))
        model = client.post("/v1/models", json=documents.graph()).json()["id"]
        asked = {"model_id": model, "cluster_id": cluster, "options": documents.OPTIONS}
        search = documents.wait(client, client.post("/v1/searches", json=asked).json()["id"])
        done = documents.wait(client, job["id"])
        assert (search["state"], done["state"]) == ("succeeded", "succeeded"), (search, done)
        assert search["finished_at"] < done["finished_at"]
        found = Calibration.from_dict(client.get(done["resource"]).json()["document"])
    assert found.complete and {fit.group_shape for fit in found.collectives} == {(2, 1)}
    launch = JobFolder(tmp_path / "data" / "launches", f"{job['id']}-1")
    assert (launch.spec.num_nodes, launch.outcome()) == (2, ("succeeded", ""))
