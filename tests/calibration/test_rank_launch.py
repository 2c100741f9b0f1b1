"""Following the results of ranks that are at work already."""

from __future__ import annotations

from pathlib import Path

import pytest

from autosbp.calibration import _rank_launch
from autosbp.calibration._rank_launch import Progress, ProgressWatcher, launch
from autosbp.calibration._request import Request, measurement_names
from autosbp.cluster.spec import load_cluster
from autosbp.errors import CalibrationError, InputError
from autosbp.launch.local import RankOutcome
from autosbp.utils.json_io import canonical


def test_a_partially_written_line_is_read_once_complete(tmp_path: Path) -> None:
    request, path, seen = Request(load_cluster("local:2"), "gloo"), tmp_path / "results.jsonl", list[Progress]()
    first, second = measurement_names(request)[:2]
    lines = [{"request": request.request_id}, {"ranks": [1, 2]}, {"begin": first}, {"left_out": "no room"}]
    text = b"".join(canonical(line) + b"\n" for line in (*lines, {"begin": second}))
    path.write_bytes(text[:-9])
    watch = ProgressWatcher(request, path, seen.append)
    assert watch.results.current == "between measurements" and watch.results.pids == (1, 2)
    with path.open("ab") as file:
        file.write(text[-9:])
    assert watch.look()
    assert (watch.results.current, [one.name for one in seen]) == (second, [second])


def failing(*_: object, **__: object) -> RankOutcome:
    return RankOutcome("a rank failed", "")


def test_a_rank_that_fails_silently_on_a_full_disk_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = Request(load_cluster("local:2"), "gloo")
    with pytest.raises(CalibrationError, match=r"ranks: a rank failed; 0 results"):
        launch(request, tmp_path, failing)
    monkeypatch.setattr(_rank_launch, "why_unwritable", lambda _: "No space left on device")
    with pytest.raises(CalibrationError, match="a rank failed: .*cannot write .*: No space left .*; 0 results"):
        launch(request, tmp_path, failing)


def test_a_folder_that_cannot_be_written_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "request.json").mkdir()
    with pytest.raises(InputError, match=f"workdir: '{tmp_path}' .* writable folder"):
        launch(Request(load_cluster("local:2"), "gloo"), tmp_path, failing)
