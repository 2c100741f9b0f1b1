"""Rank script: train under every strategy with NCCL. ``python -m benchmarks.gpu._ranks REQUEST RESULT``."""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from autosbp.executor.parameter_shards import initial_parameters
from autosbp.executor.pipeline import make_trainer
from autosbp.executor.single_device_reference import SingleDeviceReference
from autosbp.executor.training import random_batch
from autosbp.executor.trial_metrics import step_memory
from autosbp.graph.serialize import from_dict
from autosbp.plan.plan import Strategy
from autosbp.utils.processes import exit_rank

STEPS = 4


def main() -> None:
    request = json.loads(Path(sys.argv[1]).read_text())
    device = torch.device(request["device"])
    if device.type == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.set_num_threads(1)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=timedelta(seconds=60))
    results: list[dict[str, Any]] = []
    for case in request["cases"]:
        graph = from_dict(case["graph"])
        parameters = initial_parameters(graph, 0)
        known: dict[tuple[int, str], list[float]] = {}
        for entry in case["strategies"]:
            strategy = Strategy.from_dict(entry["strategy"])
            of = strategy.global_batch, strategy.optimizer
            whole = random_batch(graph, strategy.global_batch, 1)
            if of not in known and dist.get_rank() == 0:
                alone = SingleDeviceReference(graph, parameters, global_batch=of[0], optimizer=of[1], device=device)
                known[of] = [float(alone.step(whole)) for _ in range(STEPS)]
                del alone
            batch = {name: each.to(device) for name, each in whole.items()}
            trainer = make_trainer(graph, strategy, parameters, device=device)
            started = time.perf_counter()
            losses = [float(trainer.step(batch)) for _ in range(STEPS)]
            seconds = (time.perf_counter() - started) / STEPS
            issued = trainer.issued()
            memory = step_memory(trainer, batch)
            trainer.issued()
            mine = {"match": issued == STEPS * trainer.expected(), "peak": memory.peak, "saved": memory.saved,
                    "kinds": sorted({call.kind for call in issued}), "count": len(issued) // STEPS}  # fmt: skip
            everyone: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(everyone, mine)
            if dist.get_rank() == 0:
                results.append({
                    "model": case["model"], "label": entry["label"], "ranks": everyone, "step_s": seconds,
                    "loss_difference": max(abs(a - b) / abs(b) for a, b in zip(losses, known[of], strict=True)),
                })  # fmt: skip
                sys.stdout.write(f"{case['model']} {entry['label']}: {seconds:.3f} s a step\n")
                sys.stdout.flush()
                Path(sys.argv[2]).write_text(json.dumps(results))
            del trainer, batch
            gc.collect()  # its tensors would count towards the next trainer's peak
    exit_rank()


if __name__ == "__main__":
    main()
