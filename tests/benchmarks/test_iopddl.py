"""``python -m benchmarks.iopddl`` on instances small enough to know the answer, and on bad files."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.integration

TINY: dict[str, Any] = {
    "problem": {
        "nodes": {
            "costs": [[15], [55, 65], [25, 45, 35], [85, 75], [95]],
            "usages": [[10], [25, 25], [15, 20, 15], [10, 10], [15]],
            "intervals": [[30, 70], [40, 70], [50, 120], [110, 140], [110, 150]],
        },
        "edges": {
            "nodes": [[0, 1], [0, 2], [1, 3], [2, 4], [3, 4]],
            "costs": [[30, 40], [50, 10, 40], [90, 10, 20, 80], [60, 20, 30], [70, 60]],
        },
        "usage_limit": 50,
    }
}


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.iopddl", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


def written(path: Path, data: object) -> Path:
    path.write_text(json.dumps(data))
    return path


def test_the_example_is_solved_and_proved(tmp_path: Path) -> None:
    out = tmp_path / "solution.json"
    done = run(written(tmp_path / "tiny.json", TINY), "--seconds", 60, "--out", out, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["cost"], result["lower_bound"], result["gap"]) == (445, 445, 0.0)
    assert json.loads(out.read_text()) == [0, 0, 2, 1, 0]


def test_costs_beyond_doubles_are_added_exactly(tmp_path: Path) -> None:
    large = 2**60 + 1
    nodes = {"costs": [[5, 7], [3]], "usages": [[0, 0], [0]], "intervals": [[0, 0], [0, 0]]}
    data = {"problem": {"nodes": nodes, "edges": {"nodes": [[0, 1]], "costs": [[large, 2]]}}}
    packed = tmp_path / "large.json.gz"
    packed.write_bytes(gzip.compress(json.dumps(data).encode()))
    result = json.loads(run(packed, "--seconds", 60, "--json").stdout)
    assert result["cost"] == 12
    assert result["usage_limit"] is None


@pytest.mark.parametrize(
    ("place", "value", "named"),
    [
        (("nodes", "costs"), None, "problem.nodes.costs"),
        (("nodes", "usages"), [[10]], "problem.nodes.usages"),
        (("edges", "nodes"), [[0, 9]] * 5, "problem.edges.nodes[0]"),
        (("edges", "costs"), [[1]] * 5, "problem.edges.costs[0]"),
        (("nodes", "intervals"), [[0, 1.5]] * 5, "problem.nodes.intervals[0]"),
    ],
)
def test_bad_files_are_refused_by_place(tmp_path: Path, place: tuple[str, str], value: object, named: str) -> None:
    data = json.loads(json.dumps(TINY))
    data["problem"][place[0]][place[1]] = value
    done = run(written(tmp_path / "bad.json", data))
    assert (done.returncode, done.stdout) == (2, "")
    assert named in done.stderr
    assert "Traceback" not in done.stderr


def test_no_file_no_json_and_no_time_are_refused(tmp_path: Path) -> None:
    text = tmp_path / "text.json"
    text.write_text("no JSON")
    for arguments in ((tmp_path / "none.json",), (text,), (written(tmp_path / "t.json", TINY), "--seconds", 0)):
        done = run(*arguments)
        assert (done.returncode, done.stdout) == (2, ""), arguments
        assert "Traceback" not in done.stderr


def test_search_does_not_start_if_the_output_is_not_writable(tmp_path: Path) -> None:
    file = written(tmp_path / "tiny.json", TINY)
    for out in (tmp_path, tmp_path / "none" / "solution.json"):
        done = run(file, "--out", out)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("--out: ")


def test_a_node_without_a_strategy_is_infeasible(tmp_path: Path) -> None:
    data = json.loads(json.dumps(TINY))
    data["problem"]["nodes"]["costs"][4], data["problem"]["nodes"]["usages"][4] = [], []
    done = run(written(tmp_path / "empty.json", data))
    assert (done.returncode, done.stdout) == (3, "")
    assert "problem.nodes.costs[4] = 0; at least 1 is required" in done.stderr


def test_a_limit_that_nothing_meets_is_infeasible(tmp_path: Path) -> None:
    data = json.loads(json.dumps(TINY))
    data["problem"]["usage_limit"] = 20
    done = run(written(tmp_path / "full.json", data), "--seconds", 60)
    assert (done.returncode, done.stdout) == (3, "")
    assert "infeasible" in done.stderr


@pytest.mark.clock
def test_the_time_given_is_kept(tmp_path: Path) -> None:
    """A large random instance, far from solved when time is up."""
    rng = np.random.default_rng(0)
    count, size = 3000, 8
    pairs = [sorted(rng.choice(count, 2, replace=False).tolist()) for _ in range(3 * count)]
    begins = rng.integers(0, 1000, count)
    data = {
        "problem": {
            "nodes": {
                "costs": rng.integers(0, 1000, (count, size)).tolist(),
                "usages": rng.integers(0, 1000, (count, size)).tolist(),
                "intervals": [[int(b), int(b + rng.integers(1, 300))] for b in begins],
            },
            "edges": {"nodes": pairs, "costs": rng.integers(0, 1000, (len(pairs), size * size)).tolist()},
            "usage_limit": 300_000,
        }
    }
    file = written(tmp_path / "large.json", data)
    run(file, "--seconds", 12)  # compiles what is not yet compiled
    began = time.monotonic()
    done = run(file, "--seconds", 12, "--json")
    taken = time.monotonic() - began
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert taken <= 12.0
    assert 0 < result["lower_bound"] <= result["cost"]
