"""Rank script: pipelined strategies against one device: loss, gradients, parameters after steps, messages."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from autosbp.costmodel.memory.stage import stage_memory
from autosbp.executor.measure import step_memory
from autosbp.executor.parameters import full_parameters, shard
from autosbp.executor.pipeline import PipelineTrainer
from autosbp.executor.pipeline._groups import StageGroups
from autosbp.executor.reference import Reference
from autosbp.executor.runtime import Runtime
from autosbp.executor.training import Trainer, random_batch
from autosbp.graph.cast import cast_floats
from autosbp.graph.ir import LogicalGraph
from autosbp.graph.serialize import from_dict
from autosbp.plan import Strategy
from autosbp.processes import end_rank
from autosbp.sbp.mesh import Mesh
from autosbp.sbp.placement import B, I
from tests.executor.equality_worker import rescale

STEPS = 5
GROUPS: dict[tuple[Mesh, int], StageGroups] = {}


def compare(graph: LogicalGraph, strategy: Strategy) -> dict[str, object]:
    """Errors on this rank, relative to the largest element of what is compared."""
    parameters, batch = full_parameters(graph, seed=1), random_batch(graph, strategy.global_batch, seed=2)
    for name in batch:  # some labels are ignored, unevenly over the batch
        if name == "labels" and batch[name].dim() == 2:
            batch[name][0, : batch[name].shape[1] // 2] = -100
    reference = Reference(graph, parameters, global_batch=strategy.global_batch, optimizer=strategy.optimizer)
    assert strategy.pipeline is not None
    key = strategy.mesh, strategy.pipeline.num_stages
    groups = GROUPS.setdefault(key, StageGroups(*key, dist.get_rank()))
    trainer = PipelineTrainer(graph, strategy, parameters, device=torch.device("cpu"), groups=groups)
    wanted, got = reference.forward_backward(batch), trainer.forward_backward(batch)
    issued, expected = trainer.issued(), trainer.expected()
    largest = max(float(value.grad.abs().max()) for value in reference.parameters.values() if value.grad is not None)
    report: dict[str, object] = {
        "loss": float(abs(got - wanted) / abs(wanted)),
        "gradient": worst(trainer, {name: value.grad for name, value in reference.parameters.items()}, True, largest),
        "stored": sorted(trainer.locals),
        "kinds": sorted({call.kind for call in issued}),
        "collectives_match": issued == expected,
        "num_p2p": sum(call.kind == "p2p" for call in issued),
    }
    if issued != expected:
        report["issued"], report["expected"] = (
            [str(each) for each in issued[:80]],
            [str(each) for each in expected[:80]],
        )
    reference.optimizer.step()
    trainer.optimizer.step()
    drift = 0.0
    for _ in range(STEPS - 1):
        wanted, got = reference.step(batch), trainer.step(batch)
        drift = max(drift, float(abs(got - wanted) / abs(wanted)))
    report["loss_after_steps"] = drift
    trained = {name: value.detach() for name, value in reference.parameters.items()}
    report["parameters"] = worst(trainer, trained, False, max(float(value.abs().max()) for value in trained.values()))
    report["memory"] = step_memory(trainer, batch).peak
    report["predicted_memory"] = sum(stage_memory(trainer.stages, trainer.stage).values())
    return report


def compare_random(graph: LogicalGraph, strategy: Strategy) -> dict[str, object]:
    """The same strategy without its pipeline draws the same numbers: dropout is equal."""
    parameters, batch = full_parameters(graph, seed=1), random_batch(graph, strategy.global_batch, seed=2)
    cpu = torch.device("cpu")
    whole = Trainer(
        graph, replace(strategy, pipeline=None), parameters, device=cpu, runtime=Runtime(strategy.mesh, 0, cpu)
    )
    trainer = PipelineTrainer(graph, strategy, parameters, device=cpu)
    losses = [(float(whole.step(batch)), float(trainer.step(batch))) for _ in range(STEPS)]
    return {
        "loss": max(abs(got - wanted) / abs(wanted) for wanted, got in losses),
        "different": len({wanted for wanted, _ in losses}) == STEPS,
    }


def worst(trainer: PipelineTrainer, wholes: dict[str, torch.Tensor | None], gradients: bool, floor: float) -> float:
    """Against this rank's part of what one device has. A gradient that is zero by mathematics (GPT-2's key bias: softmax
    does not see it) is compared to ``floor``."""
    found = 0.0
    for name, local in trainer.locals.items():
        whole = wholes[name]
        if whole is None:
            continue
        layout = tuple(I if sbp == B else sbp for sbp in trainer.strategy.parameters[name])
        wanted = shard(whole, layout, trainer.strategy.mesh, trainer.runtime.coordinate)
        got = local.grad if gradients else local.detach()
        assert got is not None
        scale = float(whole.abs().max())
        found = max(found, float((got - wanted).abs().max()) / (scale if scale > 1e-12 * floor else floor))
    return found


def main() -> None:
    request = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    results = []
    for case in request["cases"]:
        for dtype in case.get("dtypes", ["float64"]):
            graph = cast_floats(from_dict(case["graph"]), "float32", dtype)
            for entry in case["strategies"]:
                check = compare_random if case.get("random") else compare
                report = check(graph, Strategy.from_dict(rescale(entry, dtype)))
                gathered: list[dict[str, object]] = [{} for _ in range(dist.get_world_size())]
                dist.all_gather_object(gathered, report)
                results.append({"model": case["model"], "label": f"{entry['label']} {dtype}", "ranks": gathered})
                if "-v" in sys.argv and dist.get_rank() == 0:
                    sys.stdout.write(f"{case['model']} {entry['label']} {gathered}\n")
                    sys.stdout.flush()
    if int(os.environ["RANK"]) == 0:
        Path(sys.argv[2]).write_text(json.dumps(results))
    end_rank()


if __name__ == "__main__":
    main()
