"""Real runs of four Gloo ranks on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from autosbp.cluster import load_cluster
from autosbp.costmodel.calibration import KINDS, Calibration
from autosbp.costmodel.network import NetworkModel
from autosbp.errors import CalibrationError, InputError
from autosbp.jsonio import canonical, loads
from calibration import Progress, calibrate, read_results

CLUSTER = load_cluster("local:2x2")
SIZES = (1 << 10, 1 << 16, 1 << 22)
LINEAR = (
    '{"args":[{"d":"float32","g":true,"t":[64,256]},{"d":"float32","g":true,"t":[512,256]}],'
    '"kwargs":{},"op":"aten.linear.default"}'
)


def gone(pids: tuple[int, ...]) -> bool:
    return not any(Path(f"/proc/{pid}/cmdline").exists() and _is_rank(pid) for pid in pids)


def _is_rank(pid: int) -> bool:
    return b"calibration._worker" in Path(f"/proc/{pid}/cmdline").read_bytes()


def test_four_ranks_are_measured_fitted_and_stored(tmp_path: Path) -> None:
    seen: list[Progress] = []
    calibration = calibrate(
        CLUSTER, sizes=SIZES, repeats=5, point_s=0.1, op_keys=[LINEAR], progress=seen.append, workdir=tmp_path
    )
    assert calibration.complete and calibration.backend == "gloo"
    shapes = [(1, 2), (2, 1), (2, 2)]
    assert [(fit.group_shape, fit.kind) for fit in calibration.collectives] == [(s, k) for s in shapes for k in KINDS]
    for fit in calibration.collectives:
        assert fit.alpha_s >= 0 and fit.beta_s_per_byte > 0
        assert [point.num_bytes for point in fit.points] == list(SIZES)
        assert all(point.median_s > 0 for point in fit.points)
        assert all(point.num_repeats >= 3 and point.iqr_s >= 0 for point in fit.points)
    # A busy machine can make any one pair of sizes come out the wrong way round, but not their sums.
    fits = calibration.collectives
    assert sum(fit.points[-1].median_s for fit in fits) > sum(fit.points[0].median_s for fit in fits)
    model = NetworkModel(CLUSTER, calibration)
    for kind in KINDS:
        assert 0 <= model.time_s(kind, 1 << 10, (2, 2)) < model.time_s(kind, 1 << 24, (2, 2))
    assert calibration.ops[LINEAR].forward_s > 0 and calibration.ops[LINEAR].backward_s > 0
    assert [one.done for one in seen] == sorted({one.done for one in seen}) and seen[0].total == 46
    assert Calibration.from_dict(loads(canonical(calibration.to_dict()))) == calibration
    assert (tmp_path / "ranks.log").read_text() == ""  # no warnings from the ranks
    assert gone(read_results(tmp_path / "results.jsonl").pids)


def test_a_bad_op_key_fails_by_name_and_keeps_what_was_measured(tmp_path: Path) -> None:
    key = '{"args":[],"kwargs":{},"op":"aten.no_such_op.default"}'
    with pytest.raises(CalibrationError) as caught:
        calibrate(load_cluster("local:2"), sizes=SIZES, point_s=0.01, op_keys=[key], workdir=tmp_path)
    message = str(caught.value)
    assert message.startswith(f"op {key}: a rank failed")
    assert "an op that this torch has is expected" in message
    results = read_results(tmp_path / "results.jsonl")
    assert len(results.points) == 5 and not results.done and gone(results.pids)


def test_a_rank_that_dies_fails_by_name_and_ends_the_others(tmp_path: Path) -> None:
    killed: list[int] = []

    def kill_last_rank(progress: Progress) -> None:
        if not killed:
            killed.append(read_results(tmp_path / "results.jsonl").pids[-1])
            os.kill(killed[0], signal.SIGKILL)

    with pytest.raises(CalibrationError, match=r"over .* bytes: a rank failed") as caught:
        calibrate(load_cluster("local:2"), progress=kill_last_rank, workdir=tmp_path)
    assert "SIGKILL" in str(caught.value) or "-9" in str(caught.value)
    assert gone(read_results(tmp_path / "results.jsonl").pids)


def test_a_run_out_of_time_says_so_and_leaves_no_process(tmp_path: Path) -> None:
    started: list[Progress] = []
    with pytest.raises(CalibrationError, match="timed out after 9 s"):
        calibrate(
            load_cluster("local:2"), repeats=10_000, point_s=60, timeout_s=9, progress=started.append, workdir=tmp_path
        )
    assert gone(read_results(tmp_path / "results.jsonl").pids)


def test_too_many_ranks_for_one_machine_are_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="at most 64 ranks"):
        calibrate(load_cluster("local:65"), workdir=tmp_path)


def test_arguments_are_checked_before_anything_starts() -> None:
    with pytest.raises(InputError, match="method"):
        calibrate(CLUSTER, method="lasso")
    with pytest.raises(InputError, match="sizes"):
        calibrate(CLUSTER, sizes=[1024])


def test_importing_calibration_imports_no_torch() -> None:
    code = "import calibration, sys; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
