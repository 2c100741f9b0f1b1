"""What ranks tell each other beside tensors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

PROGRAM = """
import os, sys
from pathlib import Path
import torch
import torch.distributed as dist
from autosbp.launch.json_gather import broadcast_bytes, gather_json
from autosbp.utils.processes import exit_rank

rank, path = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method="file://" + path, rank=rank, world_size=3)
cpu = torch.device("cpu")
mine = {"rank": rank, "names": ["ü" * rank] * rank, "value": 1 / (rank + 1), "none": None}
everyone = gather_json(mine, cpu)
assert [found["rank"] for found in everyone] == [0, 1, 2]
assert everyone[rank] == mine and everyone[2]["names"] == ["üü"] * 2
for content in (b"", b"one line\\n", os.urandom(1) * 100_000):
    found = broadcast_bytes(content if rank == 0 else b"another", cpu)
    assert len(found) == len(content) and (rank or found == content)
try:
    gather_json({"value": float("nan")}, cpu)
except ValueError:
    print("refused")
exit_rank()
"""


def test_json_gather_returns_the_values_of_all_ranks(tmp_path: Path) -> None:
    ranks = [
        subprocess.Popen([sys.executable, "-c", PROGRAM, str(rank), str(tmp_path / "store")], stdout=subprocess.PIPE)
        for rank in range(3)
    ]
    for process in ranks:
        out, _ = process.communicate(timeout=120)
        assert process.returncode == 0 and out == b"refused\n"
