"""Rank script of ``common.train``: ``torchrun ... -m train REQUEST.json RESULT.json``."""

from __future__ import annotations

import json
import sys
import time
import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from common import STEPS, Run, process_group
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from autosbp.executor.parameter_shards import initial_parameters, shard
from autosbp.executor.single_device_reference import SingleDeviceReference
from autosbp.executor.training import Trainer, random_batch
from autosbp.graph.ir import LogicalGraph
from autosbp.graph.serialize import from_dict
from autosbp.plan.plan import Strategy
from autosbp.sbp.layout import B, I


def main() -> None:
    """Train every case of the request on one rank."""
    request, results = json.loads(Path(sys.argv[1]).read_text()), {}
    largest = ("step_s", "loss_error", "gradient_error", "parameters", "gradients", "optimizer", "peak")
    with process_group() as dist:
        for label, case in request.items():
            mine = asdict(_run(from_dict(case["graph"]), Strategy.from_dict(case["strategy"]), case["seed"]))
            everyone: list[dict[str, Any]] = [{} for _ in range(dist.get_world_size())]
            dist.all_gather_object(everyone, mine)
            most = {key: max(rank[key] for rank in everyone) for key in largest}
            results[label] = {**mine, **most, "as_charged": all(rank["as_charged"] for rank in everyone)}
        if dist.get_rank() == 0:
            Path(sys.argv[2]).write_text(json.dumps(results))


def _run(graph: LogicalGraph, strategy: Strategy, seed: int) -> Run:
    parameters, batch = initial_parameters(graph, seed), random_batch(graph, strategy.global_batch, seed + 1)
    alone = SingleDeviceReference(graph, parameters, global_batch=strategy.global_batch, optimizer=strategy.optimizer)
    wanted = [float(alone.forward_backward(batch))]
    trainer = Trainer(graph, strategy, parameters, device=torch.device("cpu"))
    losses = [float(trainer.forward_backward(batch))]
    gradient_error = _gradient_error(trainer, alone)
    for each in (alone, trainer):
        each.optimizer.step()
    trainer.issued()
    wanted += [float(alone.step(batch)) for _ in range(STEPS - 1)]
    del alone
    times = []
    for _ in range(STEPS - 2):
        start = time.perf_counter()
        losses.append(float(trainer.step(batch)))
        times.append(time.perf_counter() - start)
    trainer.issued()
    with _LiveBytes([*_resident(trainer), *batch.values()]) as live:
        losses.append(float(trainer.step(batch)))
    issued = trainer.issued()
    return Run(
        losses=tuple(losses),
        step_s=min(times),
        loss_error=max(abs(got - want) / abs(want) for got, want in zip(losses, wanted, strict=True)),
        gradient_error=gradient_error,
        parameters=sum(local.nbytes for local in trainer.locals.values()),
        gradients=sum(local.grad.nbytes for local in trainer.locals.values() if local.grad is not None),
        optimizer=sum(state.nbytes for state in _states(trainer)),
        peak=live.peak,
        sent=dict(Counter(call.kind for call in issued)),
        as_charged=issued == trainer.expected(),
    )


def _resident(trainer: Trainer) -> list[torch.Tensor]:
    """Tensors that a rank holds between two steps; do not keep references, because the next step frees the gradients."""
    gradients = [local.grad for local in trainer.locals.values() if local.grad is not None]
    return [*trainer.locals.values(), *gradients, *_states(trainer)]


def _states(trainer: Any) -> list[torch.Tensor]:
    """Optimizer state, without its step counters."""
    states = trainer.optimizer.state.values()
    return [value for state in states for value in state.values() if value.dim() > 0]


def _gradient_error(trainer: Any, alone: Any) -> float:
    """Largest error of a gradient against one device, relative to that parameter's largest gradient."""
    worst, mesh = 0.0, trainer.strategy.mesh
    for name, local in trainer.locals.items():
        whole = alone.parameters[name].grad
        layout = tuple(I if sbp == B else sbp for sbp in trainer.strategy.parameters[name])
        part = shard(whole, layout, mesh, trainer.runtime.coordinate)
        worst = max(worst, float((local.grad - part).abs().max() / whole.abs().max().clamp_min(1e-12)))
    return worst


class _LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Track every tensor created in the context; ``peak`` is the most bytes alive at once, including ``known``."""

    def __init__(self, known: Sequence[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: set[int] = set()
        self.bytes = self.peak = 0
        for tensor in known:
            self.add(tensor)

    def add(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        address, size = storage._cdata, storage.nbytes()
        if address not in self.seen:
            self.seen.add(address)
            self.bytes += size
            self.peak = max(self.peak, self.bytes)
            weakref.finalize(storage, self.drop, address, size)

    def drop(self, address: int, size: int) -> None:
        self.seen.discard(address)
        self.bytes -= size

    def __torch_dispatch__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for value in tree_iter(out):
            if isinstance(value, torch.Tensor):
                self.add(value)
        return out


if __name__ == "__main__":
    main()
