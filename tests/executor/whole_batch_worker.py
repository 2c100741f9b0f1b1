"""Rank script: strategies in several microbatches against one device that has the whole batch at once."""

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
from autosbp.graph.ir import LogicalGraph
from autosbp.graph.serialize import from_dict
from autosbp.plan.plan import Strategy
from autosbp.utils.processes import exit_rank

STEPS = 5
IGNORED = -100


def compare(graph: LogicalGraph, strategy: Strategy) -> dict[str, object]:
    """Of this rank: the largest relative errors of losses and parameters in ``STEPS`` steps."""
    parameters, batch = initial_parameters(graph, seed=1), random_batch(graph, strategy.global_batch, seed=2)
    if "labels" in batch:  # of four microbatches the first has none that count, and no other has as many as the next
        batch["labels"][torch.tensor([0, 1, 3, 6])] = IGNORED
    reference = SingleDeviceReference(
        graph, parameters, global_batch=strategy.global_batch, optimizer=strategy.optimizer
    )
    trainer = make_trainer(graph, strategy, parameters, device=torch.device("cpu"), learning_rate=1e-3)
    loss, matches = 0.0, True
    for _ in range(STEPS):
        wanted, got = float(reference.step(batch)), float(trainer.step(batch))
        loss = max(loss, abs(got - wanted) / abs(wanted))
        matches = matches and trainer.issued() == trainer.expected()
    worst = 0.0
    for name, local in trainer.locals.items():
        whole = reference.parameters[name].detach()
        wanted_part = shard(whole, strategy.parameters[name], strategy.mesh, trainer.runtime.coordinate)
        worst = max(worst, float((local.detach() - wanted_part).abs().max() / whole.abs().max()))
    return {"loss": loss, "parameters": worst, "collectives_match": matches}


def main() -> None:
    request = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    results = {}
    for label, case in request.items():
        graph = from_dict(case["graph"])
        everyone: list[dict[str, object]] = [{} for _ in range(dist.get_world_size())]
        dist.all_gather_object(everyone, compare(graph, Strategy.from_dict(case["strategy"])))
        results[label] = everyone
    if int(os.environ["RANK"]) == 0:
        Path(sys.argv[2]).write_text(json.dumps(results))
    exit_rank()


if __name__ == "__main__":
    main()
