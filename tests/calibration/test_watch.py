"""Following the results of ranks that are at work already."""

from __future__ import annotations

from pathlib import Path

from autosbp.cluster import load_cluster
from autosbp.jsonio import canonical
from calibration._launch import Progress, Watch
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
