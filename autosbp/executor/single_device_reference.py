"""Single-device training of the logical graph: the reference for training under any strategy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from math import prod

import torch

from autosbp.executor.lowering import is_random_node
from autosbp.executor.parameter_shards import make_trainable
from autosbp.executor.training import has_master_weights, make_optimizer
from autosbp.graph.ir import LogicalGraph
from autosbp.graph.to_fx import to_graph_module
from autosbp.program.microbatch_loss import microbatch_loss_scaling
from autosbp.utils.resource_limits import free_bytes

_HOST = torch.device("cpu")
_STATES, _FULL_BYTES = 5, 4
"""Tensors per parameter (itself, gradient, two moments, float32 copy) and bytes per float32 element, at most."""


def reference_device(graph: LogicalGraph, micro_batch: int, device: torch.device) -> tuple[torch.device, int | None]:
    """Device of a ``SingleDeviceReference``, and the bytes that it has there for activations.

    It is ``device`` if that has room for all parameters, gradients and optimizer state plus the activations of a
    microbatch of the graph, else the host.
    """
    if device.type != "cuda":
        return device, free_bytes()
    torch.cuda.empty_cache()
    left = int(torch.cuda.mem_get_info(device)[0]) - sum(
        _STATES * max(leaf.meta.num_bytes, _FULL_BYTES * prod(leaf.meta.sizes)) for leaf in graph.parameters
    )
    one = graph.bind(**dict.fromkeys(graph.symbols, micro_batch))
    return (device, left) if _activation_bytes(one) <= left else (torch.device("cpu"), free_bytes())


def _activation_bytes(bound: LogicalGraph) -> int:
    return sum(meta.num_bytes for node in bound.nodes for meta in node.outputs)


def reference_batch_size(graph: LogicalGraph, global_batch: int, micro_batch: int, room: int | None) -> int:
    """The whole batch, or a microbatch if the activations of the whole batch take more than ``room`` bytes."""
    whole = graph.bind(**dict.fromkeys(graph.symbols, global_batch))
    return global_batch if room is None or _activation_bytes(whole) <= room else micro_batch


class SingleDeviceReference:
    """The steps of ``Trainer`` on one device, with whole parameters, on the whole batch at once.

    With a smaller ``micro_batch``, to save memory, gradients and losses of the parts are summed with the weights of
    ``program.microbatch_loss``. Denominators are the exception: each part divides by its own, which is exact only if each
    has the same number of labels.
    """

    def __init__(
        self,
        graph: LogicalGraph,
        parameters: Mapping[str, torch.Tensor],
        *,
        global_batch: int,
        micro_batch: int | None = None,
        optimizer: str = "adamw",
        learning_rate: float = 1e-3,
        device: torch.device = _HOST,
    ) -> None:
        self.device = device
        self.size = micro_batch or global_batch
        self.count = global_batch // self.size
        self.scale = microbatch_loss_scaling(graph, global_batch, self.size).scale
        self.graph = graph.bind(**dict.fromkeys(graph.symbols, self.size))
        self.program = to_graph_module(self.graph).to(device)
        self.parameters = {
            leaf.name: make_trainable(parameters[leaf.name].to(device, copy=True), leaf) for leaf in graph.parameters
        }
        self.optimizer = make_optimizer(
            optimizer, [value for value in self.parameters.values() if value.requires_grad], learning_rate,
            master_weights=has_master_weights(self.graph),
        )  # fmt: skip

    def forward_backward(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Loss and gradients of the global batch."""
        self.optimizer.zero_grad(set_to_none=True)
        whole = torch.zeros((), dtype=torch.float64)
        for at in range(self.count):
            part = slice(at * self.size, (at + 1) * self.size)
            inputs = [batch[leaf.name][part].to(self.device) for leaf in self.graph.inputs]
            loss = self.program(*self.parameters.values(), *inputs)
            (loss * self.scale if self.scale != 1.0 else loss).backward()
            whole += loss.detach().double().cpu() * self.scale
        return whole

    def loss_spread(self, batch: Mapping[str, torch.Tensor], num_seeds: int = 32) -> float:
        """Relative standard deviation of the loss over seeds of dropout and other random ops; 0 without them."""
        if not any(is_random_node(self.graph, node) for node in self.graph.nodes):
            return 0.0
        losses = []
        inputs = [batch[leaf.name][: self.size].to(self.device) for leaf in self.graph.inputs]
        with torch.no_grad(), torch.random.fork_rng():
            for seed in range(num_seeds):
                torch.manual_seed(seed)
                losses.append(self.program(*self.parameters.values(), *inputs).double())
        values = torch.stack(losses)
        return float(values.std() / values.mean().abs().clamp(min=1e-12)) / math.sqrt(self.count)

    def step(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        loss = self.forward_backward(batch)
        self.optimizer.step()
        return loss
