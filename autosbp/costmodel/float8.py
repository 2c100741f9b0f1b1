"""Products of linear layers in float8, with dynamic scaling of whole tensors, as in torchao's ``Float8Linear``.

A linear layer's product is in float8 if its parameter says so (``ParameterMeta.product_dtype``) and both dims of the
parameter are multiples of 16, which ``torch._scaled_mm`` needs. Its operands are stored in high precision. Each product
reads them from float8 copies: one kernel finds the largest magnitude of a tensor, which is its scale, and another one
casts it. Forward casts both operands. Backward casts the gradient of the output, and both operands once more, because
autograd saves them in high precision (torchao, ``float8_linear.py``). Results are in high precision.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autosbp.graph.ir import DTYPE_BYTES, FLOAT8, LogicalGraph, Node, ParameterMeta
from autosbp.sbp.rules import sharding_of

Floats = NDArray[np.float64]
MULTIPLE = 16
"""Divisor of both dims of the parameter."""
KERNELS_PER_TENSOR = 2
"""The largest magnitude, and the cast."""
SCALED_FORWARD, SCALED_BACKWARD = 2, 3
"""Tensors that are scaled: the operands, and in backward the gradient of the output too."""
_FLOAT8_BYTES = 1
_OPERANDS: Mapping[str, tuple[int, int]] = {
    "aten.linear.default": (0, 1),
    "aten.mm.default": (0, 1),
    "aten.addmm.default": (1, 2),
}
"""Positions of the two operands among an op's tensors."""


@dataclass(frozen=True, slots=True)
class RooflineWork:
    """What an op's roofline depends on besides FLOPs.

    Args:
        dtype: dtype of its products.
        num_bytes: bytes that its kernels read and write in forward, without those of scaling.
        scaling_bytes: bytes that scaling reads and writes, forward and backward; None for an op without scaling.
    """

    dtype: str
    num_bytes: Floats
    scaling_bytes: tuple[Floats, Floats] | None = None


def float8_operands(graph: LogicalGraph, node: Node) -> tuple[int, int] | None:
    """Positions of the operands of a product in float8, among the op's tensors; None for other ops."""
    positions = _OPERANDS.get(node.op)
    if positions is None:
        return None
    refs = list(node.refs())
    weights = [meta for meta in (graph.meta(refs[at]) for at in positions) if isinstance(meta, ParameterMeta)]
    if len(weights) != 1 or weights[0].product_dtype != FLOAT8:
        return None
    return positions if all(size % MULTIPLE == 0 for size in weights[0].sizes) else None


def roofline_work(graph: LogicalGraph, node: Node, ins: Sequence[Floats], outs: Sequence[Floats]) -> RooflineWork:
    """Work of one op whose inputs and outputs have these local bytes."""
    touched = sharding_of(graph, node).traffic * _sum((*ins, *outs))
    positions = float8_operands(graph, node)
    if positions is None:
        return RooflineWork(node.outputs[0].dtype, touched)
    operands, share = _sum([ins[at] for at in positions]), float8_share(node)
    passes = scaling_passes(share)
    return RooflineWork(FLOAT8, touched - (1 - share) * operands, (passes * operands, passes * (operands + _sum(outs))))


def float8_share(node: Node) -> float:
    """Bytes of a float8 copy over those of the tensor."""
    return _FLOAT8_BYTES / DTYPE_BYTES[node.outputs[0].dtype]


def scaling_passes(share: float) -> float:
    """How often scaling moves a tensor's bytes: read for the scale, read for the cast, and ``share`` of them written."""
    return 2 + share


def _sum(arrays: Sequence[Floats]) -> Floats:
    total = arrays[0]
    for array in arrays[1:]:
        total = total + array
    return total


def op_launches(graph: LogicalGraph, node: Node) -> tuple[float, float]:
    """Kernels of an op, forward and backward, with those of scaling."""
    forward, backward = sharding_of(graph, node).launches
    if float8_operands(graph, node) is None:
        return forward, backward
    return forward + KERNELS_PER_TENSOR * SCALED_FORWARD, backward + KERNELS_PER_TENSOR * SCALED_BACKWARD
