"""Running nccl-tests: finding its programs, starting them, reading text and JSON, and every way to fail. Programs are
stand-ins that replay a real log: the real ones need GPUs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autosbp.calibration import calibrate_with_nccl_tests, read_nccl_log
from autosbp.calibration._nccl_run import HOME
from autosbp.cluster.spec import load_cluster
from autosbp.costmodel.calibration import KINDS, Calibration
from autosbp.errors import CalibrationError, InputError
from tests.calibration.fake_nccl import LOG, install

pytestmark = pytest.mark.integration

ONE, TWO = load_cluster("dgx-h100:1"), load_cluster("dgx-h100:2")
TEXT = read_nccl_log(LOG)


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of programs that behave as its file ``behaviour`` says; launchers are on PATH."""
    folder = tmp_path / "nccl-tests" / "build"
    install(folder)
    monkeypatch.setenv(HOME, str(folder.parent))
    monkeypatch.setenv("PATH", f"{folder / 'launchers'}:/usr/bin:/bin")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    return folder


@pytest.mark.some(2)
@pytest.mark.parametrize("behaviour", ["json", "text"])
def test_a_node_is_measured_directly_by_programs_of_new_and_old_releases(
    programs: Path, tmp_path: Path, behaviour: str
) -> None:
    (programs / "behaviour").write_text(behaviour)
    found = calibrate_with_nccl_tests(ONE, tmp_path / "out", launcher="auto")
    assert {(fit.kind, fit.group_shape[-1]) for fit in found.collectives} == {(k, n) for k in KINDS for n in (2, 4, 8)}
    assert all([point.median_s for point in fit.points] == pytest.approx([point.median_s for point in TEXT.out_of_place])
               and fit.points[0].num_repeats == 20 for fit in found.collectives)  # fmt: skip
    assert Calibration.from_dict(found.to_dict()) == found
    call = lines(programs / "calls.jsonl")[0]
    assert (call["-b"], call["-e"], call["-f"], call["-g"]) == ("1024", str(2**30), "4", "2")
    assert ("-J" in call) == (behaviour == "json") == (tmp_path / "out" / "all_reduce-1x2.json").exists()


@pytest.mark.some(2)
@pytest.mark.parametrize(("launcher", "slurm"), [("mpirun", False), ("srun", True)])
def test_nodes_are_measured_with_all_groups_of_a_shape_at_once(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launcher: str, slurm: bool
) -> None:
    if slurm:
        monkeypatch.setenv("SLURM_JOB_ID", "7")
    found = calibrate_with_nccl_tests(TWO, tmp_path / "out")
    assert {fit.group_shape for fit in found.collectives} == {(1, 2), (1, 4), (1, 8), (2, 1), (2, 8)}
    splits = {call["split"] for call in lines(programs / "calls.jsonl")}
    assert splits == {"DIV 2", "DIV 4", "DIV 8", "MOD 8", ""}
    starts = lines(programs / "launched.jsonl")
    assert {start[0] for start in starts} == {launcher}
    assert all("16" in " ".join(start) and "8" in " ".join(start) for start in starts)
    assert f"started by {launcher}" in found.notes[0]


def test_in_place_times_are_taken_on_request(programs: Path, tmp_path: Path) -> None:
    found = calibrate_with_nccl_tests(ONE, tmp_path / "out", in_place=True)
    assert found.collectives[0].points[0].median_s == pytest.approx(TEXT.in_place[0].median_s)


@pytest.mark.parametrize(
    ("behaviour", "part"),
    [
        ("json wrong", r"all_reduce over 1x2: .*results\[3\].out_of_place: 7.0 wrong values at 262144 bytes"),
        ("text wrong", "all_reduce over 1x2: .*7 wrong values at 262144 bytes"),
        ("json truncated", "all_reduce over 1x2: .*truncated: the run has no summary"),
        ("text truncated", "all_reduce over 1x2: .*truncated: the run has no summary"),
        ("fail", "all_reduce over 1x2: exit code 3.*(?s:unhandled cuda error)"),
        ("hang", "all_reduce over 1x2: timed out after 1 s"),
    ],
)
def test_runs_that_fail_name_the_measurement_and_keep_the_output(
    programs: Path, tmp_path: Path, behaviour: str, part: str
) -> None:
    (programs / "behaviour").write_text(behaviour)
    with pytest.raises(CalibrationError, match=f"(?s){part}"):
        calibrate_with_nccl_tests(ONE, tmp_path / "out", timeout_s=1.0 if behaviour == "hang" else 60.0)
    assert (tmp_path / "out" / "all_reduce-1x2.txt").exists()


def test_a_file_cut_within_its_json_is_truncated(programs: Path, tmp_path: Path) -> None:
    calibrate_with_nccl_tests(ONE, tmp_path / "out")
    text = (tmp_path / "out" / "all_gather-1x4.json").read_text()
    assert read_nccl_log(tmp_path / "out" / "all_gather-1x4.json").kind == "all_gather"
    for end in range(len(text) // 2, len(text) - 1, 97):
        (tmp_path / "cut.json").write_text(text[:end])
        with pytest.raises(CalibrationError, match="truncated"):
            read_nccl_log(tmp_path / "cut.json", "all_gather")


def test_a_missing_program_says_where_it_was_looked_for(programs: Path, tmp_path: Path) -> None:
    (programs / "broadcast_perf").unlink()
    with pytest.raises(InputError, match=f"{HOME}: .*broadcast_perf"):
        calibrate_with_nccl_tests(ONE, tmp_path / "out")


@pytest.mark.parametrize(("cluster", "launcher"), [(TWO, "direct"), (ONE, "ssh"), (TWO, "mpirun")])
def test_a_launcher_that_cannot_start_the_ranks_is_refused(
    programs: Path, tmp_path: Path, cluster: Any, launcher: str
) -> None:
    (programs / "launchers" / "mpirun").unlink()
    with pytest.raises(InputError, match="nccl_tests"):
        calibrate_with_nccl_tests(cluster, tmp_path / "out", launcher=launcher)
