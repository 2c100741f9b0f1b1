"""Rank script: for each strategy, loss, gradients, parameters and collectives against a single device's."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from datetime import timedelta
from math import prod
from pathlib import Path

import torch
import torch.distributed as dist

from autosbp.executor.parameter_shards import distributed_tensor, initial_parameters, shard
from autosbp.executor.process_groups import stage_device_mesh
from autosbp.executor.single_device_reference import SingleDeviceReference
from autosbp.executor.training import Trainer, random_batch
from autosbp.graph.dtype_cast import cast_floats
from autosbp.graph.ir import LogicalGraph
from autosbp.graph.serialize import from_dict
from autosbp.plan.plan import Strategy
from autosbp.sbp.layout import B, I
from autosbp.utils.processes import exit_rank

Tensors = dict[str, torch.Tensor]
STEPS = 2


@dataclass(frozen=True, slots=True)
class Alone:
    """Training on one device, from ``parameters`` on ``batch``. ``losses`` are those of a first pass, whose ``gradients``
    are applied, and of ``STEPS`` steps; ``trained`` are the parameters after them; ``sizes`` are the largest elements of
    the gradients in float64."""

    parameters: Tensors
    batch: Tensors
    losses: list[torch.Tensor]
    gradients: Tensors
    trained: Tensors
    sizes: dict[str, float]


def alone(graph: LogicalGraph, strategy: Strategy) -> Alone:
    """What strategies of the same batches and optimizer are compared with."""
    parameters = initial_parameters(graph, seed=1)
    batch = random_batch(graph, strategy.global_batch, seed=2)
    for name in batch:  # some labels are ignored, unevenly over the batch
        if name == "labels" and batch[name].dim() == 2:
            batch[name][0, : batch[name].shape[1] // 2] = -100
    reference = SingleDeviceReference(
        graph, parameters, global_batch=strategy.global_batch, optimizer=strategy.optimizer
    )
    losses = [reference.forward_backward(batch)]
    trained = {name: value for name, value in reference.parameters.items() if value.requires_grad}
    gradients = {name: value.grad.clone() for name, value in trained.items() if value.grad is not None}
    reference.optimizer.step()
    losses += [reference.step(batch) for _ in range(STEPS)]
    exact = SingleDeviceReference(
        cast_floats(graph, "float32", "float64"),
        {name: value.detach().double() for name, value in parameters.items()},
        global_batch=strategy.global_batch,
    )
    exact.forward_backward(
        {key: value.double() if value.is_floating_point() else value for key, value in batch.items()}
    )
    largest = {name: float(value.grad.abs().max()) for name, value in exact.parameters.items() if value.requires_grad}
    after = {name: value.detach() for name, value in reference.parameters.items()}
    return Alone(parameters, batch, losses, gradients, after, largest)


def compare(graph: LogicalGraph, strategy: Strategy, known: dict[tuple[object, ...], Alone]) -> dict[str, object]:
    """Errors on this rank. ``known`` is what one device does with this graph, by batches and optimizer."""
    key = strategy.global_batch, strategy.optimizer
    if key not in known:
        known[key] = alone(graph, strategy)
    reference, batch = known[key], known[key].batch
    trainer = Trainer(graph, strategy, reference.parameters, device=torch.device("cpu"))
    losses = [trainer.forward_backward(batch)]
    issued = trainer.issued()
    report: dict[str, object] = {
        "collectives_match": issued == trainer.expected(),
        "num_collectives": len(issued),
        "kinds": sorted({call.kind for call in issued}),
    }
    if issued != trainer.expected():
        report["issued"] = [str(call) for call in issued[:60]]
        report["expected"] = [str(call) for call in trainer.expected()[:60]]
    report["gradient"] = gradient_error(trainer, reference)
    trainer.optimizer.step()
    losses += [trainer.step(batch) for _ in range(STEPS)]
    errors = [float(abs(got - wanted) / abs(wanted)) for got, wanted in zip(losses, reference.losses, strict=True)]
    return {
        **report,
        "loss": errors[0],
        "loss_after_steps": max(errors[1:]),
        "dtensor": dtensor_error(trainer, reference),
    }


def dtensor_error(trainer: Trainer, reference: Alone) -> float:
    """Parameters as DTensors, gathered by torch, against the reference's."""
    mesh = stage_device_mesh(trainer.strategy.mesh, 1, "cpu")
    worst = 0.0
    for name, local in trainer.locals.items():
        wanted = reference.trained[name]
        tensor = distributed_tensor(local.detach(), trainer.strategy.parameters[name], tuple(wanted.shape), mesh)
        worst = max(worst, float((tensor.full_tensor() - wanted).abs().max() / wanted.abs().max().clamp_min(1e-12)))
    return worst


def gradient_error(trainer: Trainer, reference: Alone) -> float:
    """The largest error of this rank's part of a gradient relative to that parameter's largest; a gradient that is zero by
    mathematics (GPT-2's key bias: softmax does not see it) is compared to the largest of all."""
    largest = max(reference.sizes.values())
    worst = 0.0
    for name, size in reference.sizes.items():
        synced = tuple(I if sbp == B else sbp for sbp in trainer.strategy.parameters[name])
        wanted = shard(reference.gradients[name], synced, trainer.strategy.mesh, trainer.runtime.coordinate)
        scale = size if size > 1e-12 * largest else largest
        worst = max(worst, float((trainer.locals[name].grad - wanted).abs().max()) / scale)
    return worst


def main() -> None:
    request = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    results = []
    for case in request["cases"]:
        graph = cast_floats(from_dict(case["graph"]), "float32", request["dtype"])
        known: dict[tuple[object, ...], Alone] = {}
        for entry in case["strategies"]:
            strategy = Strategy.from_dict(rescale(entry, request["dtype"]))
            report = compare(graph, strategy, known)
            gathered: list[dict[str, object]] = [{} for _ in range(dist.get_world_size())]
            dist.all_gather_object(gathered, report)
            results.append({"model": case["model"], "label": entry.get("label", ""), "ranks": gathered})
    if int(os.environ["RANK"]) == 0:
        Path(sys.argv[2]).write_text(json.dumps(results))
    exit_rank()


def rescale(entry: dict[str, object], dtype: str) -> dict[str, object]:
    """Paths are keyed by bytes; in float64 every float tensor is twice as large, others (int64, bool) are not."""
    strategy = json.loads(json.dumps(entry["strategy"]))
    if dtype == "float64":
        for path in strategy["paths"]:
            if path["bytes"] == 4 * prod(path["shape"]):
                path["bytes"] *= 2
    return strategy


if __name__ == "__main__":
    main()
