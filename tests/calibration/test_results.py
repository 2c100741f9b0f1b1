"""Results files: whole runs, what a run that ended early left behind, and which run may go on with it."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from autosbp.calibration import Request, assemble, read_partial, read_results
from autosbp.calibration._rank_launch import mark_used, prepare_results_file
from autosbp.calibration._rank_worker import Log
from autosbp.calibration._request import (
    CORE_CONTENTION,
    LAUNCH_OVERHEAD,
    OVERLAP,
    arrival_delays,
    measurement_names,
    series,
)
from autosbp.cluster.spec import load_cluster
from autosbp.costmodel.calibration import OpTime
from autosbp.costmodel.compute_contention import ComputeSharing
from autosbp.costmodel.launch_overhead import LaunchOverhead
from autosbp.costmodel.overlap import Overlap
from autosbp.errors import CalibrationError, InputError
from autosbp.utils.json_io import canonical
from autosbp.utils.processes import start_ticks

pytestmark = pytest.mark.integration

REQUEST = Request(load_cluster("local:2"), "gloo", (1024, 4096, 16384), op_keys=("k",))


def lines() -> list[bytes]:
    made: list[object] = [{"request": REQUEST.request_id}, {"ranks": [7, 8]}]
    for sizes in series(REQUEST):
        for one in sizes:
            values = [one.num_bytes, 1e-3 + 1e-9 * one.num_bytes, 0.0, 30]
            made.append({"begin": one.name})
            shape = list(one.placement.group_shape)
            made.append({"point": {"kind": one.kind, "group_shape": shape, "values": values}})
    for waiting in arrival_delays(REQUEST):
        shape = list(waiting.placement.group_shape)
        made.append({"begin": waiting.name})
        made.append({"waiting": {"kind": waiting.kind, "group_shape": shape, "seconds": 2e-3}})
    made += [{"begin": OVERLAP}, {"overlap": {"compute": 3.0, "network": 0.5, "message": 1.5}}]
    made += [{"begin": CORE_CONTENTION}, {"sharing": {"speedup": 1.75, "units": [0, 0]}}]
    made += [{"begin": "op k"}, {"op": {"key": "k", "forward_s": 1e-3, "backward_s": 2e-3}}, {"done": True}]
    return [canonical(record) + b"\n" for record in made]


def test_a_whole_run_is_a_complete_calibration(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_bytes(b"".join(lines()))
    calibration = assemble(REQUEST, read_results(path), "relative")
    assert calibration.complete and len(calibration.collectives) == 6 and calibration.ops == {"k": OpTime(1e-3, 2e-3)}
    assert all(fit.waiting_s == 2e-3 for fit in calibration.collectives)
    assert calibration.sharing == ComputeSharing(1.75, (0, 0)) and calibration.overlap == Overlap(3.0, 0.5, 1.5)
    assert calibration.notes == () and read_results(path).pids == (7, 8)


def test_host_overhead_is_measured_only_on_gpus(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    *first, last, done = lines()
    asked = [{"begin": LAUNCH_OVERHEAD}, {"launches": {"forward_s": 3e-5, "backward_s": 5e-5}}]
    path.write_bytes(b"".join([*first, last, *(canonical(each) + b"\n" for each in asked), done]))
    assert assemble(REQUEST, read_results(path), "relative").launches == LaunchOverhead(3e-5, 5e-5)
    assert LAUNCH_OVERHEAD not in measurement_names(REQUEST)
    assert LAUNCH_OVERHEAD in measurement_names(replace(REQUEST, backend="nccl"))


def test_a_run_that_ended_early_is_refused_by_name_or_taken_as_partial(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_bytes(b"".join(lines()[:11]) + b'{"poi')
    results = read_results(path)
    with pytest.raises(CalibrationError, match="all_gather over 2, 4096 bytes: .* 23 measurements left"):
        assemble(REQUEST, results, "relative")
    partial = assemble(REQUEST, results, "relative", partial=True)
    assert not partial.complete and [fit.kind for fit in partial.collectives] == ["all_reduce"]
    assert partial.notes == ("all_gather over 2, 4096 bytes: the run stopped here, with 23 measurements left",)


def test_the_folder_of_a_run_that_ended_early_is_a_partial_calibration(tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").write_bytes(b"".join(lines()[:11]))
    with pytest.raises(InputError, match="^folder: .* with request.json and results.jsonl"):
        read_partial(tmp_path)
    (tmp_path / "request.json").write_bytes(b'{"backend":"gloo"}')
    with pytest.raises(InputError, match="expected the request of a calibration of this release"):
        read_partial(tmp_path)
    (tmp_path / "request.json").write_bytes(canonical(REQUEST.to_dict()))
    partial = read_partial(tmp_path)
    assert not partial.complete and [fit.kind for fit in partial.collectives] == ["all_reduce"]


def test_poor_fits_are_reported(tmp_path: Path) -> None:
    path, scattered = tmp_path / "results.jsonl", [3e-3, 1e-3, 3e-3, 1e-3, 3e-3, 1e-3]
    points = [
        {"point": {"kind": "p2p", "group_shape": [2], "values": [1024 * 2**at, seconds, 0.0, 30]}}
        for at, seconds in enumerate(scattered)
    ]
    measured = [line for line in lines() if not (b'"point"' in line and b'"p2p"' in line)]
    path.write_bytes(b"".join([*measured[:-1], *(canonical(point) + b"\n" for point in points), measured[-1]]))
    note, *_ = assemble(REQUEST, read_results(path), "relative").notes
    assert note.startswith("fits with errors above 25 % at half of their sizes") and "p2p over 2 (" in note
    assert "all_reduce" not in note


def test_no_file_is_a_run_that_did_not_start(tmp_path: Path) -> None:
    assert read_results(tmp_path / "none").current == "start of the ranks"


@pytest.mark.parametrize(
    "line",
    [
        b"{]\n",
        b'{"begin":"x"}\n{"point":{"kind":"p2p","group_shape":[2],"values":[1]}}\n',
        b'{"left_out":"before any began"}\n',
        b'{"begin":"x"}\n{"op":{}}\n',
        b"[1]\n",
        b'{"of_a_later_release":1}\n',
    ],
)
def test_a_line_that_is_no_result_is_refused_by_number(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "results.jsonl"
    path.write_bytes(lines()[0] + line)
    with pytest.raises(InputError, match=f"line {1 + line.count(bytes([10]))}"):
        read_results(path)


def test_flat_times_few_repeats_and_sizes_left_out_leave_notes(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    changed = [line.replace(b"0.001016384", b"0.0009").replace(b"0.0,30", b"0.0,7") for line in lines()]
    for size in (65536, 262144):
        left_out = [canonical({"begin": f"p2p over 2, {size} bytes"}), canonical({"left_out": "too big"})]
        changed[-1:-1] = [line + b"\n" for line in left_out]
    path.write_bytes(b"".join(changed))
    notes = assemble(REQUEST, read_results(path), "relative").notes
    assert "all_reduce over 2: times do not grow with size" in notes[0]
    assert notes[-2:] == (
        "18 of 18 points have fewer than 30 repeats (minimum 7)",
        "skipped (too big): p2p over 2, 65536, 262144 bytes",
    )


def test_an_unfinished_run_is_continued_without_the_line_that_was_being_written(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_bytes(b"".join(lines()[:6]) + b'{"poi')
    prepare_results_file(replace(REQUEST, timeout_s=1.0), path)
    assert path.read_bytes().startswith(b"".join(lines()[:6]) + b'{"at_s":')
    results = read_results(path)
    assert results.made == {"all_reduce over 2, 1024 bytes", "all_reduce over 2, 4096 bytes"}
    assert results.current == "start of the ranks" and results.pids == ()


@pytest.mark.parametrize("left", [b"".join(lines()[:6]), b"no JSON\n", b'{"point":{}}\n'])
def test_unfinished_runs_of_other_requests_are_kept(tmp_path: Path, left: bytes) -> None:
    path = tmp_path / "results.jsonl"
    path.write_bytes(left)
    prepare_results_file(replace(REQUEST, repeats=31), path)
    assert read_results(path).made == set()
    others = [other for other in tmp_path.iterdir() if other != path]
    assert [other.read_bytes() for other in others] == [left]


def test_a_finished_run_is_continued_until_a_calibration_was_made_of_it(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_bytes(b"".join(lines()))
    prepare_results_file(REQUEST, path)
    assert assemble(REQUEST, read_results(path), "ols").complete
    mark_used(tmp_path)
    prepare_results_file(REQUEST, path)
    results = read_results(path)
    assert results.made == set() and results.request_id == REQUEST.request_id and list(tmp_path.iterdir()) == [path]


def test_a_folder_in_which_another_process_calibrates_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    with subprocess.Popen(["sleep", "60"]) as other:
        header = {"request": REQUEST.request_id, "owner": [other.pid, start_ticks(other.pid)]}
        path.write_bytes(canonical(header) + b"\n")
        with pytest.raises(InputError, match=f"workdir: .* in use by calibration process {other.pid}"):
            prepare_results_file(REQUEST, path)
        other.kill()
        other.wait()
    prepare_results_file(REQUEST, path)


def test_ranks_that_a_killed_run_has_left_are_ended(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    idle = [sys.executable, "-c", "import time; time.sleep(60)"]
    with (
        subprocess.Popen([*idle, "autosbp.calibration._rank_worker", str(path)]) as rank,
        subprocess.Popen(idle) as other,
    ):
        header = {"request": REQUEST.request_id, "owner": [other.pid, -1]}
        path.write_bytes(b"".join(canonical(line) + b"\n" for line in (header, {"ranks": [rank.pid, other.pid]})))
        prepare_results_file(REQUEST, path)
        assert rank.wait(10) == -signal.SIGKILL and other.poll() is None
        other.kill()


def test_a_line_is_written_whole_where_the_disk_takes_it_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "results.jsonl"
    with Log(str(path)) as log, log._file as file:
        log._file = SimpleNamespace(write=lambda data: file.write(bytes(data)[:5]), close=lambda: None)  # type: ignore[assignment]
        log.write({"begin": "all_reduce"})
    assert path.read_bytes() == b'{"begin":"all_reduce"}\n'
