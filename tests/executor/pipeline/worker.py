"""Rank script: pipelined strategies against one device: loss, gradients, parameters after steps, messages."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from autosbp.costmodel.memory.stage_memory import stage_memory
from autosbp.executor.parameter_shards import initial_parameters, shard
from autosbp.executor.pipeline import PipelineTrainer
from autosbp.executor.pipeline._groups import StageGroups
from autosbp.executor.runtime import Runtime
from autosbp.executor.single_device_reference import SingleDeviceReference
from autosbp.executor.training import Trainer, random_batch
from autosbp.executor.trial_metrics import step_memory
from autosbp.graph.dtype_cast import cast_floats
from autosbp.graph.ir import LogicalGraph
from autosbp.graph.serialize import from_dict
from autosbp.plan.plan import Strategy
from autosbp.sbp.layout import B, I
from autosbp.sbp.mesh import Mesh
from autosbp.utils.processes import exit_rank
from tests.executor.equality_worker import rescale

STEPS = 5
GROUPS: dict[tuple[Mesh, int], StageGroups] = {}


@dataclass(frozen=True)
class Alone:
    """What one device does: the loss of each step, gradients of the first one, parameters after all."""

    losses: list[float]
    gradients: dict[str, torch.Tensor | None]
    parameters: dict[str, torch.Tensor]


Known = dict[tuple[int, str], Alone]
"""Of one graph, by batch and optimizer."""


def alone(
    graph: LogicalGraph, strategy: Strategy, parameters: dict[str, torch.Tensor], batch: dict[str, torch.Tensor]
) -> Alone:
    reference = SingleDeviceReference(
        graph, parameters, global_batch=strategy.global_batch, optimizer=strategy.optimizer
    )
    losses = [float(reference.forward_backward(batch))]
    grads = {name: None if value.grad is None else value.grad.clone() for name, value in reference.parameters.items()}
    reference.optimizer.step()
    losses += [float(reference.step(batch)) for _ in range(STEPS - 1)]
    return Alone(losses, grads, {name: value.detach() for name, value in reference.parameters.items()})


def compare(graph: LogicalGraph, strategy: Strategy, known: Known) -> dict[str, object]:
    """Errors on this rank, relative to the largest element of what is compared."""
    parameters, batch = initial_parameters(graph, seed=1), random_batch(graph, strategy.global_batch, seed=2)
    for name in batch:  # some labels are ignored, unevenly over the batch
        if name == "labels" and batch[name].dim() == 2:
            batch[name][0, : batch[name].shape[1] // 2] = -100
    of = strategy.global_batch, strategy.optimizer
    if of not in known:
        known[of] = alone(graph, strategy, parameters, batch)
    wanted = known[of]
    assert strategy.pipeline is not None
    key = strategy.mesh, strategy.pipeline.num_stages
    groups = GROUPS.setdefault(key, StageGroups(*key, dist.get_rank()))
    trainer = PipelineTrainer(graph, strategy, parameters, device=torch.device("cpu"), groups=groups)
    got = [float(trainer.forward_backward(batch))]
    issued, expected = trainer.issued(), trainer.expected()
    largest = max(float(value.abs().max()) for value in wanted.gradients.values() if value is not None)
    report: dict[str, object] = {
        "loss": abs(got[0] - wanted.losses[0]) / abs(wanted.losses[0]),
        "gradient": worst(trainer, wanted.gradients, True, largest),
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
    trainer.optimizer.step()
    got += [float(trainer.step(batch)) for _ in range(STEPS - 1)]
    report["loss_after_steps"] = max(abs(own - one) / abs(one) for own, one in zip(got, wanted.losses, strict=True))
    most = max(float(value.abs().max()) for value in wanted.parameters.values())
    report["parameters"] = worst(trainer, wanted.parameters, False, most)
    report["memory"] = step_memory(trainer, batch).peak
    report["predicted_memory"] = sum(stage_memory(trainer.stages, trainer.stage).values())
    return report


def compare_random(graph: LogicalGraph, strategy: Strategy, _: Known) -> dict[str, object]:
    """The same strategy without its pipeline draws the same numbers: dropout is equal."""
    parameters, batch = initial_parameters(graph, seed=1), random_batch(graph, strategy.global_batch, seed=2)
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


def worst(trainer: PipelineTrainer, wholes: Mapping[str, torch.Tensor | None], gradients: bool, floor: float) -> float:
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
            graph, known = cast_floats(from_dict(case["graph"]), "float32", dtype), Known()
            for entry in case["strategies"]:
                check = compare_random if case.get("random") else compare
                report = check(graph, Strategy.from_dict(rescale(entry, dtype)), known)
                gathered: list[dict[str, object]] = [{} for _ in range(dist.get_world_size())]
                dist.all_gather_object(gathered, report)
                results.append({"model": case["model"], "label": f"{entry['label']} {dtype}", "ranks": gathered})
                if "-v" in sys.argv and dist.get_rank() == 0:
                    sys.stdout.write(f"{case['model']} {entry['label']} {gathered}\n")
                    sys.stdout.flush()
    if int(os.environ["RANK"]) == 0:
        Path(sys.argv[2]).write_text(json.dumps(results))
    exit_rank()


if __name__ == "__main__":
    main()
