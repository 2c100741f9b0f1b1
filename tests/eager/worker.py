"""Rank script: every case of ``tests.eager.cases`` on four ranks, one after another.

python -m tests.eager.worker RESULT.json
"""

from __future__ import annotations

import json
import sys
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from autosbp.utils.processes import exit_rank
from tests.eager.cases import CASES, World


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    world = World()
    failures: dict[str, str] = {}
    for name, case in CASES.items():
        torch.manual_seed(0)
        problem = ""
        try:
            case(world)
        except Exception:  # reported by the test of this case
            problem = traceback.format_exc()
        everyone = [""] * dist.get_world_size()
        dist.all_gather_object(everyone, problem)
        failures[name] = "".join(f"rank {rank}: {text}" for rank, text in enumerate(everyone) if text)
    if dist.get_rank() == 0:
        Path(sys.argv[1]).write_text(json.dumps(failures))
    exit_rank()


if __name__ == "__main__":
    main()
