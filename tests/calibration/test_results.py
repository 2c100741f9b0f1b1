"""Results files: whole runs, and what a run that ended early left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from autosbp.cluster import load_cluster
from autosbp.costmodel.calibration import OpTime
from autosbp.errors import CalibrationError, InputError
from autosbp.jsonio import canonical
from calibration import Request, assemble, read_results
from calibration._request import measurements

REQUEST = Request(load_cluster("local:2"), "gloo", (1024, 4096, 16384), op_keys=("k",))


def lines() -> list[bytes]:
    made: list[object] = [{"ranks": [7, 8]}]
    for one in measurements(REQUEST):
        values = [one.num_bytes, 1e-3 + 1e-9 * one.num_bytes, 0.0, 10]
        made.append({"begin": one.name})
        made.append({"point": {"kind": one.kind, "group_shape": list(one.group_shape), "values": values}})
    made += [{"begin": "op k"}, {"op": {"key": "k", "forward_s": 1e-3, "backward_s": 2e-3}}, {"done": True}]
    return [canonical(record) + b"\n" for record in made]


def test_a_whole_run_is_a_complete_calibration(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_bytes(b"".join(lines()))
    calibration = assemble(REQUEST, read_results(path), "relative")
    assert calibration.complete and len(calibration.collectives) == 5 and calibration.ops == {"k": OpTime(1e-3, 2e-3)}
    assert calibration.notes == () and read_results(path).pids == (7, 8)


def test_a_run_that_ended_early_is_refused_by_name_or_taken_as_partial(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_bytes(b"".join(lines()[:10]) + b'{"poi')
    results = read_results(path)
    with pytest.raises(CalibrationError, match="all_gather over 2, 4096 bytes: .* 12 measurements before its end"):
        assemble(REQUEST, results, "relative")
    partial = assemble(REQUEST, results, "relative", partial=True)
    assert not partial.complete and [fit.kind for fit in partial.collectives] == ["all_reduce"]


def test_no_file_is_a_run_that_did_not_start(tmp_path: Path) -> None:
    assert read_results(tmp_path / "none").current == "start of the ranks"


def test_a_line_that_is_not_json_is_refused_by_number(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_bytes(lines()[0] + b"{]\n")
    with pytest.raises(InputError, match="line 2"):
        read_results(path)


def test_flat_times_leave_a_note(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_bytes(b"".join(line.replace(b"0.001016384", b"0.0009") for line in lines()))
    assert "do not grow with size" in assemble(REQUEST, read_results(path), "relative").notes[0]
