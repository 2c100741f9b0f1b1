"""Work of one training step that the model itself asks for: FLOPs of its matrix products, and tokens.

Model FLOPs count forward, and the products of backward that gradients need: one for each operand of a product that has
a gradient, so twice forward where both have one. Recomputation and attention's own recomputation do not count (PaLM,
Chowdhery et al. 2022, appendix B); causal attention counts half of the scores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autosbp.cluster.spec import Cluster
from autosbp.graph.ir import LogicalGraph, Node, Ref
from autosbp.sbp.rules import sharding_of

_OPERANDS = 3
"""Leading tensors of an op that may be operands of its products; masks and biases come later or have one dim."""


@dataclass(frozen=True, slots=True)
class ModelWork:
    """Work of one sample: FLOPs by the dtype of the products, and tokens; None for models without a sequence."""

    flops: Mapping[str, float]
    sequence_length: int | None

    def ideal_s(self, num_samples: int, cluster: Cluster) -> float:
        """Seconds in which the cluster's devices do the FLOPs at their peaks."""
        groups = [(group.device, group.num_devices) for group in cluster.groups]
        devices = groups or [(cluster.device, cluster.num_devices)]
        peaks = {dtype: sum(count * device.peak(dtype) for device, count in devices) for dtype in self.flops}
        return num_samples * sum(flops / peaks[dtype] for dtype, flops in self.flops.items())


def model_work(bound: LogicalGraph, num_samples: int) -> ModelWork:
    """Work of one sample of a graph that is bound at ``num_samples``."""
    flops: dict[str, float] = {}
    for node in bound.nodes:
        if node.name in bound.parameter_dependent:
            forward = sharding_of(bound, node).flops
            if forward:
                dtype = node.outputs[0].dtype
                flops[dtype] = flops.get(dtype, 0.0) + forward * (1 + _backward_products(bound, node)) / num_samples
    return ModelWork(flops, sequence_length(bound))


def _backward_products(graph: LogicalGraph, node: Node) -> float:
    """FLOPs of backward over those of forward: 2 if all operands have gradients."""
    refs = list(node.refs())[:_OPERANDS]
    operands = [ref for ref in refs if graph.meta(ref).is_float and len(graph.meta(ref).shape) > 1]
    if not operands or node.name not in graph.differentiable:
        return 0.0
    return 2.0 * sum(graph.has_gradient(ref) for ref in operands) / len(operands)


def sequence_length(graph: LogicalGraph) -> int | None:
    """Tokens of a sample: the length of the longest input [batch, length] that indexes an embedding; None without one."""
    indices = {node.args[1] for node in graph.nodes if node.op == "aten.embedding.default"}
    lengths = [leaf.meta.shape[1] for leaf in graph.inputs if len(leaf.meta.shape) == 2 and Ref(leaf.name) in indices]
    return max((length for length in lengths if isinstance(length, int)), default=None)
