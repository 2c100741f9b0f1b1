"""The two sides of a comparison: a training step of our program and one of PyTorch's own tools, on the same batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from autosbp.executor.parameter_shards import initial_parameters
from autosbp.executor.training import Trainer, make_optimizer
from autosbp.graph.ir import LogicalGraph
from autosbp.plan.plan import Strategy
from benchmarks.lowering._models import Model

LEARNING_RATE = 1e-4
Batch = Mapping[str, torch.Tensor]
TrainingStep = Callable[[], torch.Tensor]
"""One training step of one side on its batch; returns the loss before the update."""


def lowered_step(model: Model, graph: LogicalGraph, strategy: Strategy, batch: Batch) -> TrainingStep:
    """Training step of the lowered program, from the module's own initial weights."""
    weights = dict(model.module().state_dict())
    parameters = initial_parameters(graph, 0, weights)
    trainer = Trainer(graph, strategy, parameters, device=torch.device("cpu"), learning_rate=LEARNING_RATE)

    def step() -> torch.Tensor:
        loss = trainer.step(batch)
        trainer.issued()
        return loss

    return step


def pytorch_step(wrapper: str, model: Model, batch: Batch) -> TrainingStep:
    """Training step of the module under a wrapper of ``WRAPPERS``."""
    module, inputs = WRAPPERS[wrapper](model, batch)
    kinds: dict[type, list[torch.Tensor]] = {}
    for parameter in module.parameters():  # an optimizer kernel takes either DTensors or plain tensors
        kinds.setdefault(type(parameter.data), []).append(parameter)
    optimizers = [make_optimizer("adamw", members, LEARNING_RATE) for members in kinds.values()]

    def step() -> torch.Tensor:
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
        loss: torch.Tensor = module(**inputs)[0]
        loss.backward()  # type: ignore[no-untyped-call]
        for optimizer in optimizers:
            optimizer.step()
        return loss.detach()

    return step


def _eager(model: Model, batch: Batch) -> tuple[nn.Module, Batch]:
    return model.module(), batch


def _ddp(model: Model, batch: Batch) -> tuple[nn.Module, Batch]:
    return nn.parallel.DistributedDataParallel(model.module()), _part(batch)


def _fsdp(model: Model, batch: Batch, reshard: bool) -> tuple[nn.Module, Batch]:
    from torch.distributed.fsdp import fully_shard

    module, mesh = model.module(), _mesh()
    for block in model.blocks(module):
        fully_shard(block, mesh=mesh, reshard_after_forward=reshard)
    fully_shard(module, mesh=mesh, reshard_after_forward=reshard)
    return module, _part(batch)


def _tensor_parallel(model: Model, batch: Batch) -> tuple[nn.Module, Batch]:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    module = model.module()
    plan: dict[str, Any] = {}
    for name, _ in module.named_modules():
        if name.endswith(model.columns):
            plan[name] = ColwiseParallel()
        elif name.endswith(model.rows):
            plan[name] = RowwiseParallel()
    return parallelize_module(module, _mesh(), plan), batch


def _mesh() -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", (dist.get_world_size(),))


def _part(batch: Batch) -> Batch:
    """This rank's samples."""
    return {name: tensor.chunk(dist.get_world_size())[dist.get_rank()] for name, tensor in batch.items()}


WRAPPERS: Mapping[str, Callable[[Model, Batch], tuple[nn.Module, Batch]]] = {
    "eager": _eager,
    "ddp": _ddp,
    "fsdp2": lambda model, batch: _fsdp(model, batch, True),
    "fsdp2-zero2": lambda model, batch: _fsdp(model, batch, False),
    "megatron": _tensor_parallel,
}
