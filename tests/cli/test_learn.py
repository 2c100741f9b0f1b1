"""``learn``: what a real trial teaches a calibration, how it is undone, and which trials are refused."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from autosbp.cluster.spec import load_cluster
from autosbp.costmodel.calibration import Calibration, CollectiveFit, Point
from autosbp.utils.tempdirs import locked_file
from tests.cli.conftest import Kept, Run
from tests.cli.processes import environment
from tests.earlier_plans import earlier_plan

pytestmark = pytest.mark.integration

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p")


def document(cluster: str = "local:2") -> dict[str, Any]:
    """A calibration of two devices that were measured to be slow."""
    there = load_cluster(cluster)
    shape = tuple(level.count for level in there.levels)
    fits = tuple(CollectiveFit(kind, shape, 1e-3, 1e-8, 1.0, 0.0, 0.0, (Point(1024, 1e-3, 0.0, 9),)) for kind in KINDS)
    return Calibration(there, "gloo", "relative", fits).to_dict()


@pytest.fixture
def calibration(tmp_path: Path) -> Path:
    path = tmp_path / "calib.json"
    path.write_text(json.dumps(document()))
    return path


def read(path: Path) -> Calibration:
    return Calibration.from_dict(json.loads(path.read_text()))


def test_a_trial_brings_predictions_closer_and_its_lesson_is_undone(
    run: Run, kept: Kept, calibration: Path, tmp_path: Path
) -> None:
    taught, undone = tmp_path / "taught.json", tmp_path / "undone.json"
    done = run("learn", calibration, "--trial", kept.folder, "-o", taught, "--json")
    assert done.exit_code == 0, done.stderr
    found, after = json.loads(done.stdout), read(taught)
    (lesson,) = found["trials"]
    measured_s = json.loads(kept.done.stdout)["step_time_s"]["median"]
    assert (lesson["trial"], lesson["measured_s"]) == (str(kept.folder), measured_s)
    assert abs(lesson["after_s"] - measured_s) < abs(lesson["before_s"] - measured_s)
    assert (found["calibration_id"], found["correction"]["num_trials"]) == (after.calibration_id, 1)
    assert found["from_calibration_id"] == read(calibration).calibration_id != after.calibration_id
    assert "corrected by 1 trial: ops x" in run("explain", taught).stdout
    assert "corrected" not in run("explain", calibration).stdout

    done = run("learn", taught, "--undo", "-o", undone)
    assert (done.exit_code, "no corrections from trials" in done.stdout) == (0, True)
    assert read(undone) == read(calibration)
    again = run("learn", undone, "--undo", "--json")
    assert again.exit_code == 2 and "corrections: 0 is invalid" in again.stderr


def test_earlier_corrections_are_not_applied_twice(
    run: Run, kept: Kept, calibration: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trial is compared with the calibration itself, so the same trial teaches the same."""
    once, twice = tmp_path / "once.json", tmp_path / "twice.json"
    assert run("learn", calibration, "--trial", kept.folder, "-o", once).exit_code == 0
    monkeypatch.setenv("COLUMNS", "500")  # the folder in one line
    done = run("learn", once, "--trial", kept.folder, "-o", twice)
    assert done.exit_code == 0, done.stderr
    assert "predicted before" in done.stdout and str(kept.folder) in done.stdout
    assert read(once).correction == read(twice).correction
    assert (len(read(once).corrections), len(read(twice).corrections)) == (1, 2)


def test_trials_of_earlier_releases_give_the_same_correction(
    run: Run, kept: Kept, calibration: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(kept.folder, tmp_path / "trial"))
    request = json.loads((folder / "request.json").read_text())
    document = earlier_plan(request["plan"])
    (folder / "request.json").write_text(json.dumps({**request, "plan": document}))
    changed("result.json", plan_id=document["plan_id"])(folder)
    learned = [tmp_path / "now.json", tmp_path / "earlier.json"]
    for trial, path in zip((kept.folder, folder), learned, strict=True):
        assert run("learn", calibration, "--trial", trial, "-o", path).exit_code == 0
    assert read(learned[0]).correction == read(learned[1]).correction


def changed(name: str, **members: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / name
        path.write_text(json.dumps({**json.loads(path.read_text()), **members}))

    return change


def cut(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / name
        path.write_text(path.read_text()[:-20])

    return change


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lambda folder: (folder / "result.json").unlink(), "result.json; result.json is missing"),
        (lambda folder: (folder / "request.json").unlink(), "request.json is missing"),
        (lambda folder: (folder / "result.json").write_bytes(b"\xff"), "result.json cannot be read"),
        (cut("result.json"), "expected valid JSON"),
        (cut("request.json"), "expected valid JSON"),
        (changed("result.json", collectives_match=False), "trial[0].result.collectives_match: False"),
        (changed("result.json", plan_id="plan-1"), "trial[0].result.plan_id: 'plan-1'"),
        (changed("result.json", step_time_s={}), "trial[0].result.step_time_s.median: None"),
        (changed("result.json", step_time_s={"median": 0}), "trial[0].result.step_time_s.median: 0"),
        (changed("request.json", plan={}), "trial[0].request.plan.schema: None"),
    ],
)
def test_an_unusable_trial_is_refused_by_name(
    run: Run, kept: Kept, calibration: Path, tmp_path: Path, spoil: Callable[[Path], None], text: str
) -> None:
    folder = Path(shutil.copytree(kept.folder, tmp_path / "trial"))
    spoil(folder)
    done = run("learn", calibration, "--trial", folder, "-o", tmp_path / "taught.json")
    assert done.exit_code == 2
    assert text in done.stderr
    assert not (tmp_path / "taught.json").exists()


def test_a_trial_of_another_cluster_and_one_given_twice_are_refused(
    run: Run, kept: Kept, calibration: Path, tmp_path: Path
) -> None:
    twice = run("learn", calibration, "--trial", kept.folder, "--trial", f"{kept.folder}/.", "--json")
    assert twice.exit_code == 2 and "trial[1]" in twice.stderr and "duplicate folder" in twice.stderr
    copy = shutil.copytree(kept.folder, tmp_path / "copy")
    twice = run("learn", calibration, "--trial", kept.folder, "--trial", copy, "-o", tmp_path / "taught.json")
    assert twice.exit_code == 2 and "trial[1]" in twice.stderr and "a copy of the trial in" in twice.stderr
    assert not (tmp_path / "taught.json").exists()
    calibration.write_text(json.dumps(document("local:2x2")))
    done = run("learn", calibration, "--trial", kept.folder, "--json")
    error = json.loads(done.stdout)["error"]
    assert (done.exit_code, error["field"]) == (2, "trial[0].result.cluster")
    assert "local:2x2" in error["limit"] and "local:2:" in error["value"]


@pytest.mark.long
def test_concurrent_corrections_of_one_calibration_are_both_kept(run: Run, kept: Kept, calibration: Path) -> None:
    before = read(calibration)
    for _ in range(2):
        assert run("learn", calibration, "--trial", kept.folder, "-o", calibration).exit_code == 0
    undo, draft = ["learn", str(calibration), "--undo", "-o"], calibration.with_name("draft.json")
    assert run(*undo, draft).exit_code == 0
    with locked_file(calibration):
        other = subprocess.Popen([sys.executable, "-m", "autosbp", *undo, str(calibration)], env=environment())
        with suppress(subprocess.TimeoutExpired):
            other.wait(8.0)
        draft.replace(calibration)
    assert other.wait(60.0) == 0
    assert read(calibration) == before
