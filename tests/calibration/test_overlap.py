"""How much computing and what is under way beside it slow each other down, where both are known."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

PROGRAM = """
import json, os, subprocess, sys, time
import torch
import torch.distributed as dist

core = min(os.sched_getaffinity(0))
os.sched_setaffinity(0, {core})
torch.set_num_threads(1)
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

from autosbp.utils.processes import exit_rank
from calibration import _overlap

rivals, asleep_s, share = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
BUSY = "import sys, time; end = time.monotonic() + float(sys.argv[1])\\nwhile time.monotonic() < end: pass"

class Work:
    def __init__(self):
        computed[0] = 0.0
        self.started = time.perf_counter()
        self.rivals = [subprocess.Popen([sys.executable, "-S", "-c", BUSY, str(2 * asleep_s)]) for _ in range(rivals)]

    def wait(self):
        time.sleep(max(self.started + asleep_s + share * computed[0] - time.perf_counter(), 0.0))
        for rival in self.rivals:
            rival.kill()
            rival.wait()

class Log:
    def beat(self):
        pass

computed = [0.0]
matrix = torch.randn(96, 96)

def call():
    started = time.perf_counter()
    matrix @ matrix
    computed[0] += time.perf_counter() - started

found = _overlap._slow_downs(lambda message: Work(), [call], torch.device("cpu"), Log())
print(json.dumps(found))
exit_rank()
"""


def slow_downs(rivals: int, asleep_s: float, share: float = 0.0) -> tuple[float, float]:
    command = [sys.executable, "-c", PROGRAM, str(rivals), str(asleep_s), str(share)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    compute, network = json.loads(done.stdout)
    return compute, network


@pytest.mark.clock
def test_waiting_ranks_do_not_slow_down_compute() -> None:
    compute, network = slow_downs(0, 0.3)
    assert compute < 0.25 and network < 0.1


@pytest.mark.clock
@pytest.mark.parametrize("rivals", [1, 3])
def test_what_takes_so_many_turns_on_the_core_leaves_the_rest_however_long_it_takes(rivals: int) -> None:
    compute, _ = slow_downs(rivals, 0.4)
    assert compute == pytest.approx(rivals, rel=0.4)


@pytest.mark.clock
def test_what_is_begun_is_charged_with_what_it_lost_while_ranks_computed() -> None:
    _, network = slow_downs(0, 0.3, share=0.5)  # of a second beside computing it lost half: one is worth half
    assert network == pytest.approx(1.0, rel=0.3)
