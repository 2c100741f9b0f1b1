"""Rank script: trains each case, and compares with one device: exact ones step by step, stale ones with delayed steps."""

from __future__ import annotations

import json
import os
import sys
from copy import deepcopy
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from autosbp.executor.parameter_shards import initial_parameters, shard
from autosbp.executor.pipeline import PipelineTrainer, make_trainer
from autosbp.executor.single_device_reference import SingleDeviceReference
from autosbp.executor.training import Trainer, random_batch
from autosbp.graph.dtype_cast import cast_floats
from autosbp.graph.ir import LogicalGraph
from autosbp.graph.serialize import from_dict
from autosbp.plan.plan import Strategy
from autosbp.utils.processes import exit_rank
from tests.executor.equality_worker import rescale

Tensors = dict[str, torch.Tensor]
STEPS = 3


def reference_run(graph: LogicalGraph, strategy: Strategy, staleness: int) -> tuple[list[float], Tensors, Tensors]:
    """Losses, first gradients and parameters of one device whose parameters lag ``staleness`` steps behind its optimizer's."""
    parameters, batch = initial_parameters(graph, 1), random_batch(graph, strategy.global_batch, 2)
    one = SingleDeviceReference(graph, parameters, global_batch=strategy.global_batch, optimizer=strategy.optimizer)
    server = SingleDeviceReference(graph, parameters, global_batch=strategy.global_batch, optimizer=strategy.optimizer)
    losses, versions, first = [], [], Tensors()
    for step in range(STEPS):
        losses.append(float(one.forward_backward(batch)))
        for name, value in one.parameters.items():
            server.parameters[name].grad = None if value.grad is None else value.grad.clone()
            if step == 0 and value.grad is not None:
                first[name] = value.grad.clone()
        server.optimizer.step()
        versions.append({name: value.detach().clone() for name, value in server.parameters.items()})
        if step >= staleness:
            with torch.no_grad():
                for name, value in versions[step - staleness].items():
                    one.parameters[name].copy_(value)
    return losses, first, {name: value.detach() for name, value in one.parameters.items()}


def compare(
    graph: LogicalGraph, strategy: Strategy, known: dict[str, tuple[list[float], Tensors, Tensors]]
) -> dict[str, object]:
    sync = strategy.sync
    staleness = max((each.staleness for each in sync.parameters.values()), default=0) if sync else 0
    key = f"{strategy.global_batch} {strategy.optimizer} {staleness}"
    if key not in known:
        known[key] = reference_run(graph, strategy, staleness)
    wanted, first, after = known[key]
    batch = random_batch(graph, strategy.global_batch, 2)
    trainer = make_trainer(graph, strategy, initial_parameters(graph, 1), device=torch.device("cpu"))
    losses = [trainer.step(batch)]
    issued = trainer.issued()
    gradients = gradient_error(trainer, first)
    losses += [trainer.step(batch) for _ in range(STEPS - 1)]
    worst = 0.0
    for name, local in trainer.locals.items():
        value = part(trainer, name, after[name])
        worst = max(worst, float((local.detach() - value).abs().max() / after[name].abs().max().clamp_min(1e-12)))
    pairs = zip(losses, wanted, strict=True)
    report: dict[str, object] = {
        "loss": max(float(abs(float(got) - want) / abs(want)) for got, want in pairs),
        "parameters": worst,
        "gradient": gradients,
        "match": issued == trainer.expected(),
        "kinds": sorted({call.kind for call in issued}),
        "bytes": sum(call.num_bytes for call in issued),
        "digest": [float(value.detach().double().sum()) for value in trainer.locals.values()],
    }
    if not report["match"]:
        report |= {"issued": [str(call) for call in issued], "expected": [str(call) for call in trainer.expected()]}
    return report


def part(trainer: Trainer | PipelineTrainer, name: str, whole: torch.Tensor) -> torch.Tensor:
    """This rank's part of a whole tensor, where B is as good as I."""
    return shard(whole, trainer.strategy.parameters[name], trainer.strategy.mesh, trainer.runtime.coordinate)


def gradient_error(trainer: Trainer | PipelineTrainer, first: Tensors) -> float:
    """Norm of the error of all gradients that are on this rank, relative to their norm."""
    error = size = 0.0
    for name, local in trainer.locals.items():
        if local.grad is not None and name in first:
            exact = part(trainer, name, first[name])
            error += float((local.grad - exact).double().square().sum())
            size += float(exact.double().square().sum())
    return (error / size) ** 0.5 if size else 0.0


def error_feedback(graph: LogicalGraph, strategy: Strategy, steps: int) -> float:
    """Relative error of the mean of ``steps`` synchronized gradients at the same parameters: feedback makes it vanish."""
    parameters, batch = initial_parameters(graph, 1), random_batch(graph, strategy.global_batch, 2)
    _, first, _ = reference_run(graph, deepcopy(strategy), 0)
    trainer = make_trainer(graph, strategy, parameters, device=torch.device("cpu"), with_optimizer=False)
    total: Tensors = {}
    for _ in range(steps):
        trainer.forward_backward(batch)
        for name, local in trainer.locals.items():
            if local.grad is not None:
                total[name] = total.get(name, torch.zeros_like(local)) + local.grad
    exact = {name: part(trainer, name, first[name]) for name in total}
    error = sum(float((value / steps - exact[name]).square().sum()) for name, value in total.items())
    return float(error / sum(float(value.square().sum()) for value in exact.values())) ** 0.5


def main() -> None:
    request = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    results = {}
    for case in request["cases"]:
        graph = cast_floats(from_dict(case["graph"]), "float32", "float64")
        known: dict[str, tuple[list[float], Tensors, Tensors]] = {}
        for entry in case["strategies"]:
            strategy = Strategy.from_dict(rescale(entry, "float64"))
            report = compare(graph, strategy, known)
            if entry.get("feedback"):
                report["feedback"] = [error_feedback(graph, strategy, steps) for steps in (1, 16)]
            gathered: list[dict[str, object]] = [{} for _ in range(dist.get_world_size())]
            dist.all_gather_object(gathered, report)
            results[entry["label"]] = gathered
    if int(os.environ["RANK"]) == 0:
        Path(sys.argv[2]).write_text(json.dumps(results))
    exit_rank()


if __name__ == "__main__":
    main()
