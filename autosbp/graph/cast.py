"""The same graph in another float type, constants and casts included."""

from __future__ import annotations

from dataclasses import replace
from math import copysign, inf

from autosbp.graph.ir import Arg, Constant, DType, LogicalGraph, TensorMeta


def cast_floats(graph: LogicalGraph, old: str, new: str) -> LogicalGraph:
    """Every tensor of dtype ``old`` becomes ``new``, and numbers beyond what that holds the last that it holds: masks add the
    least float32, which would be infinite."""
    import torch

    from autosbp.graph.materialise import constant_tensor, dtype_of, make_constant

    def meta(value: TensorMeta) -> TensorMeta:
        return TensorMeta(value.shape, new if value.dtype == old else value.dtype)

    most = float(torch.finfo(dtype_of(new)).max)

    def arg(value: Arg) -> Arg:
        if isinstance(value, float) and most < abs(value) < inf:
            return copysign(most, value)
        return DType(new) if isinstance(value, DType) and value.name == old else value

    def constant(value: Constant) -> Constant:
        if value.meta.dtype != old:
            return value
        return make_constant(value.name, constant_tensor(value).to(dtype_of(new)))

    return replace(
        graph,
        parameters=tuple(replace(leaf, meta=meta(leaf.meta)) for leaf in graph.parameters),
        inputs=tuple(replace(leaf, meta=meta(leaf.meta)) for leaf in graph.inputs),
        constants=tuple(constant(leaf) for leaf in graph.constants),
        nodes=tuple(
            replace(node.map_args(arg), outputs=tuple(meta(output) for output in node.outputs)) for node in graph.nodes
        ),
    )
