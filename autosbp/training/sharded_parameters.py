"""Sharded parameters: a trainer's local parameters as float32 DTensors of a module, and their gradients.

The trainer computes with its own tensors. A float32 parameter shares their memory. Half-precision parameters, and those
with optimizer state on the host, are separate tensors (master weights) that are copied to the trainer's before each call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from autosbp.executor.master_weights import is_half_precision
from autosbp.executor.parameter_shards import distributed_tensor, shard
from autosbp.executor.pipeline import PipelineTrainer
from autosbp.executor.process_groups import stage_device_mesh
from autosbp.executor.running_statistics import BATCHES, MEAN, VARIANCE, batch_norm_layers
from autosbp.executor.training import Trainer, has_master_weights

Gradients = list[torch.Tensor | None]
"""Of each trained parameter, in order; None if it has none."""


class ShardedParameters:
    """Parameters of a trainer, registered on ``module`` under their own names.

    ``whole`` are the initial parameters; master weights keep their full precision. All ranks have to create it at the same
    time, because it makes device meshes.
    """

    def __init__(
        self, trainer: Trainer | PipelineTrainer, whole: Mapping[str, torch.Tensor], module: torch.nn.Module
    ) -> None:
        self._trainer, strategy = trainer, trainer.strategy
        kind = "cpu" if strategy.offload else trainer.runtime.device.type
        self._mesh = stage_device_mesh(strategy.mesh, strategy.num_stages, kind)
        self._shapes = {leaf.name: leaf.meta.sizes for leaf in trainer.graph.parameters}
        self._has_masters = has_master_weights(trainer.graph)
        self._parameters: dict[str, torch.nn.Parameter] = {}
        self._masters: list[str] = []
        for name, local in trainer.locals.items():
            master = self._master(name, local, whole)
            value = self._distributed(name, master)
            self._parameters[name] = torch.nn.Parameter(value, requires_grad=local.requires_grad)
            _register(module, name, self._parameters[name])
        self._trained = [name for name, each in self._parameters.items() if each.requires_grad]
        self._counted = [name for name in self._trained if self._gives(name)]

    def _master(self, name: str, local: torch.Tensor, whole: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The tensor that the optimizer steps: the trainer's own, or a copy of it."""
        strategy, is_half = self._trainer.strategy, self._has_masters and is_half_precision(local)
        if not strategy.offload and not is_half:
            return local.detach()
        self._masters.append(name)
        part = shard(whole[name], strategy.parameters[name], strategy.mesh, self._trainer.runtime.coordinate)
        dtype = torch.float32 if is_half else local.dtype
        return part.to("cpu" if strategy.offload else local.device, dtype)

    def _distributed(self, name: str, local: torch.Tensor) -> Any:
        return distributed_tensor(local, self._trainer.strategy.parameters[name], self._shapes[name], self._mesh)

    def _gives(self, name: str) -> bool:
        """Whether this rank's part of a parameter counts in sums over all ranks: the first of the ranks that have it."""
        strategy, coordinate = self._trainer.strategy, self._trainer.runtime.coordinate
        layout = strategy.parameters[name]
        if any(not sbp.is_split and place for sbp, place in zip(layout, coordinate, strict=True)):
            return False
        if not isinstance(self._trainer, PipelineTrainer):
            return True
        stages = [shared.stages for shared, _ in self._trainer.shared if name in shared.names]
        return all(self._trainer.stage == min(each) for each in stages)

    @torch.no_grad()
    def copy_to_trainer(self) -> None:
        """Copy master weights to the trainer's tensors; the others share memory."""
        if self._masters:
            targets = [self._trainer.locals[name].detach() for name in self._masters]
            torch._foreach_copy_(targets, [self._local(self._parameters[name]) for name in self._masters])

    def trainer_gradients(self) -> Gradients:
        """The gradients in the trainer's buffers."""
        return [self._trainer.locals[name].grad for name in self._trained]

    @torch.no_grad()
    def add_gradients(self, gradients: Gradients, scale: float) -> None:
        """Add gradients times ``scale`` to those of the parameters."""
        for name, gradient in zip(self._trained, gradients, strict=True):
            if gradient is None:
                continue
            parameter = self._parameters[name]
            local = self._local(parameter)
            value = gradient.to(local.device, local.dtype)
            value = value if scale == 1.0 else value * scale
            if parameter.grad is None:
                parameter.grad = self._distributed(name, value)
            else:
                self._local(parameter.grad).add_(value)

    @torch.no_grad()
    def own_gradients(self) -> None:
        """Copy gradients that share the trainer's buffers, because the next pass overwrites these."""
        for name in self._trained:
            parameter, local = self._parameters[name], self._trainer.locals[name]
            if parameter.grad is None or local.grad is None:
                continue
            own = self._local(parameter.grad)
            if own.untyped_storage().data_ptr() == local.grad.untyped_storage().data_ptr():
                parameter.grad = self._distributed(name, own.clone())

    def counted_gradients(self) -> Iterator[torch.Tensor]:
        """This rank's parts of the gradients; over all ranks, each element of the gradients occurs once."""
        for name in self._counted:
            gradient = self._parameters[name].grad
            if gradient is not None:
                yield self._local(gradient)

    @torch.no_grad()
    def scale_gradients(self, scale: torch.Tensor) -> None:
        """Multiply every gradient by a scalar tensor."""
        gradients = [each.grad for each in self._parameters.values() if each.grad is not None]
        for gradient in gradients:
            local = self._local(gradient)
            local.mul_(scale.to(local.device, local.dtype))

    @staticmethod
    def _local(tensor: torch.Tensor) -> torch.Tensor:
        local: torch.Tensor = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        return local


def register_statistics(trainer: Trainer | PipelineTrainer, module: torch.nn.Module) -> None:
    """Register this rank's running statistics on ``module`` under their own names. Collective: it makes device meshes."""
    strategy, names = trainer.strategy, batch_norm_layers(trainer.graph)
    mesh = stage_device_mesh(strategy.mesh, strategy.num_stages, trainer.runtime.device.type)
    shapes = {node.name: node.outputs[0].sizes[1:2] for node in trainer.graph.nodes if node.name in names}
    for node, each in trainer.statistics.items():
        owner, _ = _owner(module, names[node])
        if MEAN not in owner._buffers:
            for name, local in ((MEAN, each.mean), (VARIANCE, each.variance)):
                owner.register_buffer(name, distributed_tensor(local, each.layout, shapes[node], mesh))
            owner.register_buffer(BATCHES, each.batches)


def _register(module: torch.nn.Module, name: str, parameter: torch.nn.Parameter) -> None:
    """Register a parameter under a dotted name; creates missing submodules."""
    owner, own = _owner(module, name)
    owner.register_parameter(own, parameter)


def _owner(module: torch.nn.Module, name: str) -> tuple[torch.nn.Module, str]:
    """The submodule for a tensor with a dotted name, created if missing, and the last part of the name."""
    *path, own = name.split(".")
    for part in path:
        if part not in module._modules:
            module.add_module(part, torch.nn.Module())
        module = module.get_submodule(part)
    return module, own
