"""The attacks that take seconds, on a real service; ``make attack`` runs all of them."""

from __future__ import annotations

import resource

import pytest

from benchmarks.attack.__main__ import run
from benchmarks.attack._cases import CASES

_FILES = 4096


@pytest.mark.clock
@pytest.mark.parametrize(
    "name", ["sign in uploads", "large heads", "interface flood", "zoo captures", "model flood", "wrong keys"]
)
def test_attacks_stay_cheap_and_do_not_delay_other_clients(name: str) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, _FILES), hard), hard))
    row = run(name, CASES[name])
    assert row["passed"], row
