"""The steps of a trial in the model's own module, which a trial compares with where there is one."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from math import prod
from typing import Any

import torch

from autosbp.executor.parameter_shards import initial_parameters
from autosbp.executor.training import make_optimizer, random_batch
from autosbp.graph.ir import LogicalGraph
from autosbp.graph.module_check import ModuleCall, first_output
from autosbp.graph.to_fx import is_random, store_parameter, torch_dtype
from autosbp.utils.resource_limits import free_bytes

BYTES_PER_PARAMETER = 20
"""Weight, gradient, two optimizer states and the graph's copy, in float32."""
MEMORY_SHARE = 0.5


def module_losses(
    call: ModuleCall, graph: LogicalGraph, *, global_batch: int, optimizer: str, seed: int, steps: int
) -> list[float] | str:
    """Losses of the first steps, with the weights and the batch of a trial with this seed; or why there are none."""
    if any(is_random(node.op) for node in graph.nodes):
        return "it draws random numbers"
    free, number = free_bytes(), sum(prod(leaf.meta.sizes) for leaf in graph.parameters)
    if free is not None and BYTES_PER_PARAMETER * number > MEMORY_SHARE * free:
        return "its weights and optimizer states do not fit in this machine"
    module = _with_weights(call.module, graph, initial_parameters(graph, seed))
    batch = random_batch(graph, global_batch, seed)
    trained = [each for each in module.parameters() if each.requires_grad]
    chosen = make_optimizer(optimizer, trained, 1e-3)
    losses = []
    for _ in range(steps):
        chosen.zero_grad(set_to_none=True)
        loss = first_output(module(**{name: batch[name] for name in call.example if name in batch}, **call.settings))
        loss.backward()  # type: ignore[no-untyped-call]
        losses.append(float(loss.detach()))
        chosen.step()
    return losses


def _with_weights(module: torch.nn.Module, graph: LogicalGraph, weights: Mapping[str, torch.Tensor]) -> torch.nn.Module:
    """A copy of the module with a trial's weights; parameters that the loss does not read are 0."""
    memo: dict[int, Any] = {}
    for parameter in module.parameters():
        zeros = torch.zeros(parameter.shape, dtype=parameter.dtype)
        memo[id(parameter)] = torch.nn.Parameter(zeros, requires_grad=parameter.requires_grad)
    found: torch.nn.Module = copy.deepcopy(module, memo)
    named = dict(found.named_parameters(remove_duplicate=False))
    for leaf in graph.parameters:
        with torch.no_grad():
            store_parameter(leaf, named[leaf.source], weights[leaf.name].to(torch_dtype(leaf.meta.dtype)))
    return found
