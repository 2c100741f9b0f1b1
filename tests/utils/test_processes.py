from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.integration

PROGRAM = """
import os
from autosbp.utils.processes import bind_to_cores
os.sched_getaffinity = lambda _: set(range({cores}))
os.sched_setaffinity = lambda _, chosen: print(*chosen)
bind_to_cores({rank}, {ranks})
"""


@pytest.mark.parametrize(
    ("cores", "ranks", "chosen"),
    [
        (2, 4, ["0", "1", "0", "1"]),
        (2, 3, ["0", "1", "0"]),
        (4, 4, ["0", "1", "2", "3"]),
        (9, 2, ["0 1 2 3", "4 5 6 7"]),
        (1, 2, ["0", "0"]),
    ],
)
def test_ranks_have_cores_of_their_own_or_share_each_evenly(cores: int, ranks: int, chosen: list[str]) -> None:
    for rank, expected in enumerate(chosen):
        code = PROGRAM.format(cores=cores, rank=rank, ranks=ranks)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == expected


def test_a_process_keeps_cores_that_it_had() -> None:
    code = "import os; from autosbp.utils.processes import bind_to_cores; bind_to_cores(1, 2); print(*os.sched_getaffinity(0))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {int(core) for core in done.stdout.split()} <= os.sched_getaffinity(0)
