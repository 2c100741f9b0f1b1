"""FLOPs and bytes of a timed op, from its key: what relates measured times to the roofline (see ``costmodel.compute``)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from autosbp.graph.ir import DTYPE_BYTES, Node, Ref, TensorMeta

REDUCTIONS = frozenset(("aten.sum.default", "aten.sum.dim_IntList"))


@dataclass(frozen=True, slots=True)
class OpWork:
    """Forward FLOPs (0 for ops without products), bytes read and written, and the dtype of the first tensor."""

    op: str
    flops: float
    num_bytes: float
    dtype: str


def op_work(key: str) -> OpWork | None:
    """The work of the op with this key; None for keys that are not understood."""
    from autosbp.errors import AutosbpError
    from autosbp.sbp.rules import RULES

    document = json.loads(key)
    metas: list[TensorMeta] = []

    def decode(item: Any) -> Any:
        if isinstance(item, Mapping) and "t" in item:
            metas.append(TensorMeta(tuple(item["t"]), item["d"]))
            return Ref(f"t{len(metas) - 1}")
        return tuple(decode(entry) for entry in item) if isinstance(item, list) else item

    args = tuple(decode(item) for item in document["args"])
    op = document["op"]
    if op not in RULES or not metas:
        return None
    out = TensorMeta(_output_shape(op, args, metas), metas[0].dtype)
    try:
        flops = RULES[op](Node("op", op, args, {}, (out,)), metas).flops
    except (AutosbpError, IndexError):
        return None
    touched = sum(prod(meta.sizes) * DTYPE_BYTES[meta.dtype] for meta in (*metas, out))
    return OpWork(op, flops, touched, metas[0].dtype)


def _output_shape(op: str, args: tuple[Any, ...], metas: list[TensorMeta]) -> tuple[int, ...]:
    first = metas[0].sizes
    if "_norm." in op:
        return first
    if op == "aten.linear.default":
        return (*first[:-1], metas[1].sizes[0])
    if op in ("aten.mm.default", "aten.bmm.default", "aten.matmul.default"):
        return (*first[:-1], metas[1].sizes[-1])
    if op == "aten.scaled_dot_product_attention.default":
        return (*first[:-1], metas[2].sizes[-1])
    if op == "aten.embedding.default":
        return (*metas[1].sizes, first[-1])
    if op == "aten.gather.default":
        return metas[1].sizes
    if op == "aten.conv2d.default":
        stride, padding = _pair(args, 3, 1), _pair(args, 4, 0)
        kernel = metas[1].sizes[2:]
        space = [
            (size + 2 * pad - k) // step + 1
            for size, pad, k, step in zip(first[2:], padding, kernel, stride, strict=True)
        ]
        return (first[0], metas[1].sizes[0], *space)
    if op == "aten.sum.default":
        return ()
    ndim = max(len(meta.shape) for meta in metas)
    padded = [(1,) * (ndim - len(meta.shape)) + meta.sizes for meta in metas]
    return tuple(max(sizes) for sizes in zip(*padded, strict=True))


def _pair(args: tuple[Any, ...], position: int, default: int) -> tuple[int, int]:
    value = args[position] if len(args) > position else default
    if isinstance(value, tuple):
        return (value[0], value[-1])
    return (value, value) if isinstance(value, int) else (default, default)
