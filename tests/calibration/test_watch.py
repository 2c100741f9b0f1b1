"""Following the results of ranks that are at work already."""

from __future__ import annotations

from pathlib import Path

import pytest

from autosbp.cluster import load_cluster
from autosbp.errors import CalibrationError, InputError
from autosbp.jsonio import canonical
from autosbp.torchrun import Outcome
from calibration import _launch
from calibration._launch import Progress, Watch, launch
from calibration._request import Request, measurement_names


def test_a_line_that_is_half_there_at_the_first_look_is_read_whole_later(tmp_path: Path) -> None:
    request, path, seen = Request(load_cluster("local:2"), "gloo"), tmp_path / "results.jsonl", list[Progress]()
    first, second = measurement_names(request)[:2]
    lines = [{"request": request.request_id}, {"ranks": [1, 2]}, {"begin": first}, {"left_out": "no room"}]
    text = b"".join(canonical(line) + b"\n" for line in (*lines, {"begin": second}))
    path.write_bytes(text[:-9])
    watch = Watch(request, path, seen.append)
    assert watch.results.current == "between measurements" and watch.results.pids == (1, 2)
    with path.open("ab") as file:
        file.write(text[-9:])
    assert watch.look()
    assert (watch.results.current, [one.name for one in seen]) == (second, [second])


def failing(*_: object, **__: object) -> Outcome:
    return Outcome("a rank failed", "")


def test_a_rank_that_failed_without_a_word_on_a_full_disk_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = Request(load_cluster("local:2"), "gloo")
    with pytest.raises(CalibrationError, match=r"ranks: a rank failed; 0 results"):
        launch(request, tmp_path, failing)
    monkeypatch.setattr(_launch, "why_unwritable", lambda _: "No space left on device")
    with pytest.raises(CalibrationError, match="a rank failed: .* cannot be written: No space left .*; 0 results"):
        launch(request, tmp_path, failing)


def test_a_folder_that_cannot_be_written_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "request.json").mkdir()
    with pytest.raises(InputError, match=f"workdir: '{tmp_path}' .* can be written is expected"):
        launch(Request(load_cluster("local:2"), "gloo"), tmp_path, failing)
