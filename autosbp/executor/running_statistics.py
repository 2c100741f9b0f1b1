"""Running statistics of batch norm: updated by every microbatch in training, used in evaluation.

They are those of the module's buffers, which have the name of the layer's weight. A microbatch updates them from the
statistics of all its samples, on whatever ranks these are, so that they equal those of one device that trains the
microbatches one after another. A recomputed forward pass updates nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch

from autosbp.executor.parameter_shards import shard
from autosbp.executor.runtime import current
from autosbp.executor.split_ops._collectives import statistics_dtype
from autosbp.executor.split_ops._norms import batch_norm_split
from autosbp.graph.ir import LogicalGraph, Ref
from autosbp.plan.plan import Strategy
from autosbp.sbp.layout import B, NdSbp

BATCH_NORM = "aten.batch_norm.default"
MEAN, VARIANCE, BATCHES = "running_mean", "running_var", "num_batches_tracked"
_CASTS = frozenset(("aten.to.dtype", "aten._to_copy.default", "aten.detach.default"))


@dataclass(frozen=True, slots=True)
class RunningStatistics:
    """Statistics of one layer: this rank's channels, in ``layout``, and the number of microbatches so far."""

    layout: NdSbp
    mean: torch.Tensor
    variance: torch.Tensor
    batches: torch.Tensor

    @torch.no_grad()
    def update(self, mean: torch.Tensor, variance: torch.Tensor, count: int, momentum: float) -> None:
        """Take in a microbatch of ``count`` values per channel with this mean and (biased) variance."""
        unbiased = variance * (count / max(1, count - 1))
        for kept, new in ((self.mean, mean), (self.variance, unbiased)):
            kept.lerp_(new.reshape(kept.shape).to(kept.dtype), momentum)


def batch_norm_layers(graph: LogicalGraph) -> dict[str, str]:
    """By node, the name of each batch norm layer that trains, by that of its weight; layers without a weight are left out."""
    nodes = {node.name: node for node in graph.nodes}
    sources = {leaf.name: leaf.source for leaf in graph.parameters}
    found = {}
    for node in graph.nodes:
        if node.op != BATCH_NORM or not node.args[5]:
            continue
        weight = node.args[1]
        while isinstance(weight, Ref) and weight.name in nodes and nodes[weight.name].op in _CASTS:
            weight = next(nodes[weight.name].refs())
        source = sources.get(weight.name, "") if isinstance(weight, Ref) else ""
        if source.endswith("weight"):
            found[node.name] = source.removesuffix("weight")
    return found


def local_statistics(
    graph: LogicalGraph,
    strategy: Strategy,
    buffers: Mapping[str, torch.Tensor],
    coordinate: tuple[int, ...],
    device: torch.device,
) -> dict[str, RunningStatistics]:
    """By node, this rank's part of the statistics among ``buffers``, whole tensors by name; one for all calls of a layer."""
    layers: dict[str, RunningStatistics] = {}
    found = {}
    for node, layer in batch_norm_layers(graph).items():
        if layer + MEAN not in buffers:
            continue
        if layer not in layers:
            layout = channel_layout(strategy, node)
            mean, variance = (
                shard(buffers[layer + name], layout, strategy.mesh, coordinate).to(device) for name in (MEAN, VARIANCE)
            )
            layers[layer] = RunningStatistics(layout, mean, variance, buffers[layer + BATCHES].to(device, copy=True))
        found[node] = layers[layer]
    return found


def channel_layout(strategy: Strategy, node: str) -> NdSbp:
    """Layout of a tensor with one value for each channel: split like the weight, which is the op's second tensor."""
    return tuple(sbp if sbp.is_split else B for sbp in strategy.signatures[node].ins[1])


def trained_batch_norm(
    node: str,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    momentum: float,
    eps: float,
    axes: tuple[int, ...],
) -> torch.Tensor:
    """In a program: batch norm in training that updates the running statistics.

    Args:
        node: name of the op.
        axes: mesh axes that split the batch or the space of ``x``.
    """
    runtime = current()
    statistics = runtime.running_statistics[node]
    updates = runtime.gathers is None or not runtime.gathers.is_recomputing
    if updates:
        statistics.batches.add_(1)
    if axes:
        update = partial(statistics.update, momentum=momentum)
        return batch_norm_split(x, weight, bias, eps, axes, update if updates else None)
    if updates and x.dtype != statistics.mean.dtype:  # no kernel takes half precision and wider statistics together
        wide, dims = x.detach().to(statistics_dtype(x)), (0, *range(2, x.dim()))
        variance, mean = torch.var_mean(wide, dims, correction=0)
        statistics.update(mean, variance, x.numel() // x.shape[1], momentum)
        updates = False
    kept = (statistics.mean, statistics.variance) if updates else (None, None)
    out: torch.Tensor = torch.ops.aten.batch_norm.default(x, weight, bias, *kept, True, momentum, eps, False)
    return out


def evaluated_batch_norm(
    node: str, x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
) -> torch.Tensor:
    """In a program: batch norm in evaluation, by the running statistics."""
    statistics, shape = current().running_statistics[node], (1, -1, *[1] * (x.dim() - 2))
    wide = x.to(torch.promote_types(x.dtype, statistics.mean.dtype))
    out = (wide - statistics.mean.view(shape)) * (statistics.variance.view(shape) + eps).rsqrt()
    out = out if weight is None else out * weight.view(shape)
    result: torch.Tensor = (out if bias is None else out + bias.view(shape)).to(x.dtype)
    return result
