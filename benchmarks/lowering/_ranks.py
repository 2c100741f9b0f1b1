"""One rank of a comparison, started by torchrun: both sides train alternately, step by step.

python -m benchmarks.lowering._ranks REQUEST.json RESULT.json
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from autosbp.graph.serialize import from_dict
from autosbp.plan.plan import Strategy
from autosbp.utils.processes import exit_rank
from benchmarks.lowering._models import MODELS
from benchmarks.lowering._sides import TrainingStep, lowered_step, pytorch_step

WARMUP = 3


def main() -> None:
    request = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    results = [measure(case, request["pairs"]) for case in request["cases"]]
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, results)
    if dist.get_rank() == 0:
        Path(sys.argv[2]).write_text(json.dumps(everyone))
    exit_rank()


def measure(case: dict[str, Any], pairs: int) -> dict[str, Any]:
    """Wall-clock and processor seconds of every step of this rank on both sides, and the first losses."""
    model = MODELS[case["model"]]
    batch = model.inputs(case["batch"], torch.Generator().manual_seed(1))
    sides = (
        lowered_step(model, from_dict(case["graph"]), Strategy.from_dict(case["strategy"]), batch),
        pytorch_step(case["wrapper"], model, batch),
    )
    losses = [[timed(side)[2] for _ in range(WARMUP)] for side in sides]
    seconds: list[list[float]] = [[], []]
    processor: list[list[float]] = [[], []]
    for pair in range(pairs):
        for side in (0, 1) if pair % 2 else (1, 0):
            passed, worked, _ = timed(sides[side])
            seconds[side].append(passed)
            processor[side].append(worked)
    return {"seconds": seconds, "processor": processor, "losses": losses}


def timed(step: TrainingStep) -> tuple[float, float, float]:
    """Run a step that all ranks begin together; returns this rank's wall-clock seconds, processor seconds and loss."""
    dist.barrier()
    started, begun = time.perf_counter(), time.process_time()
    loss = step()
    return time.perf_counter() - started, time.process_time() - begun, float(loss)


if __name__ == "__main__":
    main()
