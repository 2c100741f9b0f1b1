"""Rank script: training steps of a compiled program against the same program op by op.

python -m tests.executor.compiled_worker REQUEST.json RESULT.json
"""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from autosbp.executor.parameter_shards import initial_parameters
from autosbp.executor.training import Trainer, random_batch
from autosbp.graph.dtype_cast import cast_floats
from autosbp.graph.serialize import from_dict
from autosbp.plan.plan import Strategy
from autosbp.utils.processes import exit_rank
from tests.executor.equality_worker import rescale


def compare(trainer: Trainer, plain: Trainer, batch: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Two steps of each: the largest relative difference of a loss, and of a gradient relative to the largest."""
    losses, gradients, match = [], [], True
    for _ in range(2):
        wanted, got = plain.forward_backward(batch), trainer.forward_backward(batch)
        losses.append(float(abs(got - wanted) / abs(wanted)))
        pairs = [(trainer.locals[name].grad, part.grad) for name, part in plain.locals.items() if part.requires_grad]
        scale = max(float(right.abs().max()) for _, right in pairs)
        gradients.append(max(float((left - right).abs().max()) for left, right in pairs) / scale)
        issued = trainer.issued()
        match = match and issued == plain.issued() == trainer.expected()
        for each in (plain, trainer):
            each.optimizer.step()
            each.runtime.step += 1
    return {"loss": max(losses), "gradient": max(gradients), "match": match, "num_collectives": len(issued)}


def main() -> None:
    request = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=300))
    results = []
    for case in request["cases"]:
        graph = cast_floats(from_dict(case["graph"]), "float32", "float64")
        parameters = initial_parameters(graph, seed=1)
        strategy = Strategy.from_dict(rescale(case, "float64"))
        batch = random_batch(graph, strategy.global_batch, seed=2)
        device = torch.device("cpu")
        trainer = Trainer(graph, strategy, parameters, device=device, compiler=case["compiler"])
        report = compare(trainer, Trainer(graph, strategy, parameters, device=device), batch)
        reports: list[dict[str, Any]] = [{} for _ in range(dist.get_world_size())]
        dist.all_gather_object(reports, report)
        results.append({"label": case["label"], "ranks": reports})
        torch.compiler.reset()
    if int(os.environ["RANK"]) == 0:
        Path(sys.argv[2]).write_text(json.dumps(results))
    exit_rank()


if __name__ == "__main__":
    main()
