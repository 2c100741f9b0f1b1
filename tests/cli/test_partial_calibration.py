"""Calibrations that ended early: what is said of them, and what can be made of what they have measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autosbp import calibration
from autosbp.calibration import Request
from autosbp.cli._calibrate import PartialResults, _store
from autosbp.cluster.spec import load_cluster
from autosbp.utils.json_io import canonical
from tests.cli.conftest import Run

REQUEST = Request(load_cluster("local:2"), "gloo", (1024, 4096, 16384))


@pytest.fixture
def left(tmp_path: Path) -> Path:
    """The folder of a run that ended in its second collective."""
    folder = tmp_path / "calib.json.partial"
    folder.mkdir()
    (folder / "request.json").write_bytes(canonical(REQUEST.to_dict()))
    records: list[object] = [{"request": REQUEST.request_id}]
    for size in REQUEST.sizes:
        point = {"kind": "all_reduce", "group_shape": [2], "values": [size, 1e-3 + 1e-9 * size, 0.0, 30]}
        records += [{"begin": f"all_reduce over 2, {size} bytes"}, {"point": point}]
    records.append({"begin": "all_gather over 2, 1024 bytes"})
    (folder / "results.jsonl").write_bytes(b"".join(canonical(record) + b"\n" for record in records))
    return folder


def test_what_a_run_that_ended_early_has_measured_is_explained_and_planned_with(
    run: Run, left: Path, folder: Path, tmp_path: Path
) -> None:
    done = run("explain", left, "--report", tmp_path / "page.html")
    assert done.exit_code == 0 and "all_reduce" in done.stdout and "incomplete" in done.stdout
    assert "incomplete: the run ended early" in (tmp_path / "page.html").read_text()
    document = json.loads(run("explain", left, "--json").stdout)
    assert document["complete"] is False and [fit["kind"] for fit in document["collectives"]] == ["all_reduce"]
    assert document["notes"][0].startswith("all_gather over 2, 1024 bytes: the run stopped here")
    (tmp_path / "partial.json").write_text(json.dumps(document))
    planned = run("plan", folder / "graph.json", "--cluster", "local:2", "--calibration", tmp_path / "partial.json")
    assert planned.exit_code == 0 and "The calibration is incomplete" in planned.stderr + planned.stdout


def test_an_unrelated_folder_is_not_a_calibration(run: Run, tmp_path: Path) -> None:
    done = run("explain", tmp_path)
    assert done.exit_code == 2
    assert "expected the folder of an unfinished calibration, with request.json and results.jsonl" in done.stderr


def test_an_interrupted_calibration_prints_how_to_continue_and_explain_it(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(calibration, "calibrate", interrupted)
    done = run("calibrate", "--cluster", "local:2", "-o", tmp_path / "calib.json")
    assert done.exit_code == 130
    assert (
        "run the same command to continue; run autosbp explain" in done.stderr and "calib.json.partial" in done.stderr
    )


def test_sizes_beyond_their_limit_are_told_by_it(run: Run, tmp_path: Path) -> None:
    sizes = f"1024,4096,{10**14}"
    done = run("calibrate", "--cluster", "local:2", "--sizes", sizes, "-o", tmp_path / "calib.json")
    assert done.exit_code == 2 and f"sizes[2]: {10**14} is invalid: expected an integer in [1, {2**32}]" in done.stderr


@pytest.mark.parametrize("others", [(), ("results-1234.jsonl",)])
def test_a_calibration_that_is_stored_leaves_what_another_request_has_measured(
    left: Path, tmp_path: Path, others: tuple[str, ...]
) -> None:
    for name in others:
        (left / name).write_text("{}")
    (left / "logs").mkdir()
    _store(tmp_path / "calib.json", {"notes": []}, PartialResults(left))
    assert (tmp_path / "calib.json").exists()
    assert (sorted(path.name for path in left.iterdir()) if left.exists() else []) == list(others)
    assert left.exists() == bool(others)
