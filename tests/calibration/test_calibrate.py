"""Real runs of four Gloo ranks on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from autosbp.calibration import Progress, calibrate, read_results
from autosbp.calibration._budget import MIN_OPS
from autosbp.calibration._collectives import free_bytes
from autosbp.cluster.spec import load_cluster
from autosbp.costmodel.calibration import KINDS, Calibration
from autosbp.costmodel.network import NetworkModel
from autosbp.errors import CalibrationError, InputError
from autosbp.launch.local import run_ranks
from autosbp.utils.json_io import canonical, loads
from tests.cli.processes import COMMAND, autosbp, environment

pytestmark = pytest.mark.integration

CLUSTER = load_cluster("local:2x2")
SIZES = (1 << 10, 1 << 16, 1 << 22)
LINEAR = (
    '{"args":[{"d":"float32","g":true,"t":[64,256]},{"d":"float32","g":true,"t":[512,256]}],'
    '"kwargs":{},"op":"aten.linear.default"}'
)


def gone(pids: tuple[int, ...]) -> bool:
    return not any(Path(f"/proc/{pid}/cmdline").exists() and _is_rank(pid) for pid in pids)


def _is_rank(pid: int) -> bool:
    return b"autosbp.calibration._rank_worker" in Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.mark.clock
def test_four_ranks_are_measured_fitted_and_stored(tmp_path: Path) -> None:
    seen: list[Progress] = []
    calibration = calibrate(
        CLUSTER, sizes=SIZES, repeats=5, point_s=0.1, op_keys=[LINEAR], progress=seen.append, workdir=tmp_path
    )
    assert calibration.complete and calibration.backend == "gloo"
    placements = [((1, 2), None), ((1, 2), 1), ((2, 1), None), ((2, 1), 1), ((2, 2), None)]
    found = [(fit.group_shape, fit.num_groups, fit.kind) for fit in calibration.collectives]
    assert found == [(*placement, kind) for placement in placements for kind in KINDS]
    for fit in calibration.collectives:
        assert fit.alpha_s >= 0 and fit.beta_s_per_byte > 0
        assert [point.num_bytes for point in fit.points] == list(SIZES)
        assert all(point.median_s > 0 for point in fit.points)
        assert all(3 <= point.num_repeats <= 5 and point.iqr_s >= 0 for point in fit.points)
        assert all(point.spread and point.spread.quantiles_s[3] == point.median_s for point in fit.points)
    # A busy machine can make any one pair of sizes come out the wrong way round, but not their sums.
    fits = calibration.collectives
    assert sum(fit.points[-1].median_s for fit in fits) > sum(fit.points[0].median_s for fit in fits)
    model = NetworkModel(CLUSTER, calibration)
    for kind in KINDS:
        assert 0 <= model.time_s(kind, 1 << 10, (2, 2)) < model.time_s(kind, 1 << 24, (2, 2))
    assert calibration.ops[LINEAR].forward_s > 0 and calibration.ops[LINEAR].backward_s > 0
    assert calibration.overlap is not None
    cores = len(os.sched_getaffinity(0))
    if cores < 4:
        assert calibration.overlap.message > 0.1, calibration.overlap  # copies need a core as much as ops do
        assert calibration.sharing is not None and calibration.sharing.units == tuple(rank % cores for rank in range(4))
        assert 1.2 < calibration.sharing.speedup <= 4.0 / cores
    else:
        assert calibration.sharing is None
    assert [one.done for one in seen] == sorted({one.done for one in seen}) and seen[0].total == 111
    assert Calibration.from_dict(loads(canonical(calibration.to_dict()))) == calibration
    assert (tmp_path / "ranks.log").read_text() == ""  # no warnings from the ranks
    assert gone(read_results(tmp_path / "results.jsonl").pids)


def test_a_bad_op_key_fails_by_name_and_keeps_what_was_measured(tmp_path: Path) -> None:
    key = '{"args":[],"kwargs":{},"op":"aten.no_such_op.default"}'
    with pytest.raises(CalibrationError) as caught:
        calibrate(load_cluster("local:2"), sizes=SIZES, point_s=0.01, op_keys=[key], workdir=tmp_path)
    message = str(caught.value)
    assert message.startswith(f"op {key}: a rank failed")
    assert "functional, argument-checking ops" in message
    results = read_results(tmp_path / "results.jsonl")
    assert len(results.points) == 6 and not results.done and gone(results.pids)


@pytest.mark.skipif(
    free_bytes(torch.device("cpu")) > 2**35, reason="this machine holds the largest messages that there are"
)
def test_sizes_beyond_memory_are_named_and_the_calibration_is_incomplete(tmp_path: Path) -> None:
    sizes = (2**32 - 16, 2**32 - 8, 2**32)
    with pytest.raises(CalibrationError) as caught:
        calibrate(load_cluster("local:2"), sizes=sizes, workdir=tmp_path)
    name = f"all_reduce over 2, {sizes[0]} bytes"
    assert str(caught.value).startswith(f"{name}: a rank failed; 0 results")
    assert f"error: rank 0: {name}: it does not fit in memory; at least 3 sizes must be measured" in str(caught.value)
    assert "Traceback" not in str(caught.value) and not read_results(tmp_path / "results.jsonl").done


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


@pytest.mark.clock
def test_a_hung_rank_is_named_and_the_next_run_continues(tmp_path: Path) -> None:
    seen: list[Progress] = []
    path = tmp_path / "results.jsonl"

    def stop_last_rank(progress: Progress) -> None:
        seen.append(progress)
        if progress.done >= 3 and seen[-2].done < 3:
            os.kill(read_results(path).pids[-1], signal.SIGSTOP)

    def run(**more: Any) -> Calibration:
        return calibrate(load_cluster("local:2"), sizes=SIZES, point_s=0.05, workdir=tmp_path, **more)

    with pytest.raises(
        CalibrationError, match="no rank has responded for 3 s: rank 1 .* is stopped; .* so far"
    ) as caught:
        run(progress=stop_last_rank, stall_s=3)
    partial = read_results(path)
    assert str(caught.value).startswith(f"{partial.current}: ")
    assert len(partial.made) >= 3 and not partial.done and gone(partial.pids)
    begun = len(seen)
    calibration = run(progress=seen.append)
    # A measurement may be over between two looks: the first that is shown is not always the first that was made.
    assert seen[begun].done >= len(partial.made)
    assert not partial.made.intersection(read_results(path).begun)
    assert calibration.complete and len(calibration.collectives) == 6
    kept = [point for points in partial.points.values() for point in points]
    assert [point for fit in calibration.collectives for point in fit.points][: len(kept)] == kept


@pytest.mark.clock
def test_a_killed_command_keeps_its_measurements_but_not_its_ranks(tmp_path: Path) -> None:
    path = tmp_path / "calib.json"
    partial = tmp_path / "calib.json.partial" / "results.jsonl"
    boxes = ("--sizes", "1024,65536,4194304", "--point-s", "0.2", "--no-variants")
    arguments = ["calibrate", "--cluster", "local:2", *boxes, "-o", str(path)]
    with subprocess.Popen([*COMMAND, *arguments], env=environment(), stderr=subprocess.PIPE) as command:
        assert command.stderr is not None
        while not command.stderr.readline().startswith(b"[3/"):
            assert command.poll() is None
        command.kill()
    left = read_results(partial)
    deadline_s = time.monotonic() + 20
    while not gone(left.pids) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert len(left.made) >= 2 and gone(left.pids) and not path.exists()
    done = autosbp(*arguments)
    assert done.returncode == 0, done.stderr
    made = int(done.stderr.splitlines()[0].removeprefix("[").partition("/")[0]) - 1
    assert made >= len(left.made)
    assert Calibration.from_dict(loads(path.read_bytes())).complete and not partial.parent.exists()


@pytest.mark.clock
def test_a_timed_out_run_says_so_and_leaves_no_process(tmp_path: Path) -> None:
    started: list[Progress] = []
    with pytest.raises(CalibrationError, match="timed out after 9 s"):
        calibrate(
            load_cluster("local:2"),
            repeats=10_000,
            point_s=60,
            budget_s=10_000,
            timeout_s=9,
            progress=started.append,
            workdir=tmp_path,
        )
    assert gone(read_results(tmp_path / "results.jsonl").pids)


@pytest.mark.clock
def test_the_time_budget_covers_the_whole_run_and_skipped_measurements_are_reported(tmp_path: Path) -> None:
    keys = [LINEAR.replace("512", str(512 + at)) for at in range(400)]  # 260 s of boxes of ops alone
    started = time.monotonic()
    calibration = calibrate(load_cluster("local:2"), op_keys=keys, budget_s=20, workdir=tmp_path)
    assert time.monotonic() - started < 20 + 10
    assert calibration.complete and len(calibration.collectives) == 6
    assert MIN_OPS <= len(calibration.ops) < len(keys) and list(calibration.ops) == keys[: len(calibration.ops)]
    num_left = len(keys) - len(calibration.ops)
    assert any(note.endswith(f" {num_left} of the lightest ops") for note in calibration.notes)


def test_an_interface_that_does_not_exist_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="interface: 'eth99' .* lo"):
        calibrate(CLUSTER, workdir=tmp_path, launch=partial(run_ranks, interface="eth99"))
    assert not (tmp_path / "ranks.log").exists()


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
