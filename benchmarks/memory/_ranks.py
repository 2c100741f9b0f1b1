"""Rank script: train and measure every case. ``python -m benchmarks.memory._ranks REQUEST RESULT``."""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from autosbp.executor.parameter_shards import initial_parameters
from autosbp.executor.training import Trainer, random_batch
from autosbp.executor.trial_metrics import step_memory
from autosbp.graph.serialize import from_dict
from autosbp.plan.plan import Strategy
from autosbp.utils.processes import exit_rank

REPEATS = 3


def main() -> None:
    request = json.loads(Path(sys.argv[1]).read_text())
    cuda = bool(request["cuda"])
    torch.set_num_threads(1)
    dist.init_process_group("nccl" if cuda else "gloo", timeout=timedelta(seconds=120))
    device = torch.device("cuda", dist.get_rank()) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    results = []
    for case in request["cases"]:
        graph = from_dict(case["graph"])
        parameters = initial_parameters(graph, 0)
        for entry in case["strategies"]:
            strategy = Strategy.from_dict(entry["strategy"])
            batch = {key: value.to(device) for key, value in random_batch(graph, strategy.global_batch, 1).items()}
            trainer = Trainer(graph, strategy, parameters, device=device)
            trainer.step(batch)
            # Minimum of a few: Gloo's thread may release a completed message a moment later.
            repeats = [step_memory(trainer, batch) for _ in range(REPEATS)]
            memory = min(repeats, key=lambda each: each.peak)
            everyone: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(everyone, [memory.peak, memory.saved])
            peaks, saved = zip(*everyone, strict=True)
            results.append({"model": case["model"], "label": entry["label"], "peak": peaks, "saved": saved})
            del trainer, batch
    if dist.get_rank() == 0:
        Path(sys.argv[2]).write_text(json.dumps(results))
    exit_rank()


if __name__ == "__main__":
    main()
