"""Ranks that train strategies of graphs in a training precision, each against one device in the same precision.

The launcher provides torchrun's environment.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from autosbp.executor.parameter_shards import initial_parameters, shard
from autosbp.executor.pipeline import make_trainer
from autosbp.executor.single_device_reference import SingleDeviceReference
from autosbp.executor.training import random_batch
from autosbp.executor.trial_metrics import step_memory
from autosbp.graph.ir import LogicalGraph
from autosbp.graph.precision import in_precision
from autosbp.graph.serialize import from_dict
from autosbp.plan.plan import Strategy
from autosbp.sbp.layout import B, I
from autosbp.utils.processes import exit_rank

STEPS = 3


def compare(graph: LogicalGraph, strategy: Strategy) -> dict[str, object]:
    """Relative errors of losses over steps, and of the first gradients, on this rank."""
    parameters, batch = initial_parameters(graph, seed=1), random_batch(graph, strategy.global_batch, seed=2)
    reference = SingleDeviceReference(
        graph, parameters, global_batch=strategy.global_batch, optimizer=strategy.optimizer
    )
    trainer = make_trainer(graph, strategy, parameters, device=torch.device("cpu"))
    losses = [(float(trainer.forward_backward(batch)), float(reference.forward_backward(batch)))]
    gradient, dtypes = 0.0, set()
    for name, part in trainer.locals.items():
        whole = reference.parameters[name].grad
        if whole is None or part.grad is None:
            continue
        synced = tuple(I if sbp == B else sbp for sbp in strategy.parameters[name])
        wanted = shard(whole, synced, strategy.mesh, trainer.runtime.coordinate)
        dtypes.add(str(part.grad.dtype).removeprefix("torch."))
        gradient = max(gradient, float((part.grad - wanted).float().norm() / whole.float().norm().clamp_min(1e-3)))
    issued = trainer.issued()
    match = issued == trainer.expected()
    trainer.optimizer.step()
    reference.optimizer.step()
    losses += [(float(trainer.step(batch)), float(reference.step(batch))) for _ in range(STEPS)]
    return {
        "loss": max(abs(got - wanted) / abs(wanted) for got, wanted in losses),
        "gradient": gradient,
        "dtypes": sorted(dtypes),
        "collectives_match": match,
        "memory_bytes": step_memory(trainer, batch).peak,
        "first_loss": losses[0][0],
        "last_loss": losses[-1][0],
    }


def main() -> None:
    request = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    results = []
    for case in request["cases"]:
        graph = in_precision(from_dict(case["graph"]), case["precision"])
        report = compare(graph, Strategy.from_dict(case["strategy"]))
        gathered: list[dict[str, object]] = [{} for _ in range(dist.get_world_size())]
        dist.all_gather_object(gathered, report)
        results.append({"label": case["label"], "ranks": gathered})
    if int(os.environ["RANK"]) == 0:
        Path(sys.argv[2]).write_text(json.dumps(results))
    exit_rank()


if __name__ == "__main__":
    main()
