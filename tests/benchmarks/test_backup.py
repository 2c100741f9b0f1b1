"""``python -m benchmarks.backup`` in its short form."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.service.server import ROOT

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("database", ["sqlite", pytest.param("postgresql", marks=pytest.mark.long)])
def test_backups_under_load_are_restored(database: str) -> None:
    program = [sys.executable, "-m", "benchmarks.backup", "--rounds", "1", "--database", database, "--check", "--json"]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["restored"], found["passed"]) == (1, True)
    assert all(each["num_expected"] > 5 for each in found["rounds"])
