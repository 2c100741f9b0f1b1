"""FLOPs and bytes of a timed op, from its key; they relate measured to roofline times (see ``costmodel.compute``)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autosbp.errors import AutosbpError, GraphError
from autosbp.graph.ir import FLOATS, DType, Node, Ref, TensorMeta
from autosbp.graph.shape_inference import infer_shape
from autosbp.sbp._op_lists import POINTWISE
from autosbp.sbp.rules import RULES
from autosbp.utils.json_io import NON_FINITE

ELEMENTWISE = frozenset(
    f"aten.{name}"
    for name in (
        *POINTWISE, "add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "mul.Scalar", "div.Scalar", "neg.default",
        "detach.default", "to.dtype", "where.self", "lerp.Scalar", "lerp.Tensor", "addcmul.default", "addcdiv.default",
        "masked_fill.Scalar", "masked_fill.Tensor", "dropout.default", "rsub.Tensor", "xlogy.Tensor", "__lshift__.Scalar",
    )
)  # fmt: skip
"""Ops whose output has the broadcast shape of their inputs."""
_BOOLEAN = frozenset((
    "eq", "ne", "lt", "gt", "le", "ge", "logical_and", "logical_or", "logical_not", "logical_xor", "isfinite", "isinf", "isnan",
))  # fmt: skip
_INDEXED = frozenset(("aten.max.dim", "aten.min.dim"))


@dataclass(frozen=True, slots=True)
class OpWork:
    """Forward FLOPs (0 for ops without matmuls), bytes read and written, and the dtype of the first tensor."""

    op: str
    flops: float
    num_bytes: float
    dtype: str


def op_work(key: str) -> OpWork | None:
    """The work of the op with this key; None if its outputs cannot be derived from the key."""
    document = json.loads(key)
    metas: list[TensorMeta] = []

    def decode(item: Any) -> Any:
        if isinstance(item, Mapping) and "t" in item:
            metas.append(TensorMeta(tuple(item["t"]), item["d"]))
            return Ref(f"t{len(metas) - 1}")
        if isinstance(item, Mapping):
            return NON_FINITE[item["float"]] if "float" in item else DType(item["dtype"])
        return tuple(decode(entry) for entry in item) if isinstance(item, list) else item

    op = document["op"]
    args = tuple(decode(item) for item in document["args"])
    kwargs = {name: decode(item) for name, item in document["kwargs"].items()}
    if op not in RULES or not metas or not metas[0].is_float:
        return None
    node = Node("op", op, args, kwargs, ())
    try:
        node = replace(node, outputs=_outputs(node, metas))
        flops = RULES[op](node, metas).flops
    except (AutosbpError, IndexError, TypeError, ValueError):
        return None
    return OpWork(op, flops, sum(meta.num_bytes for meta in (*metas, *node.outputs)), metas[0].dtype)


def _outputs(node: Node, metas: Sequence[TensorMeta]) -> tuple[TensorMeta, ...]:
    shape = infer_shape(node, metas)
    if shape is None:
        if node.op not in ELEMENTWISE:
            raise GraphError("op", node.op, "expected an op whose output shape follows from its arguments")
        ndim = max(len(meta.shape) for meta in metas)
        padded = [(1,) * (ndim - len(meta.shape)) + meta.sizes for meta in metas]
        shape = tuple(max(sizes) for sizes in zip(*padded, strict=True))
    indices = (TensorMeta(shape, "int64"),) if node.op in _INDEXED else ()
    return (TensorMeta(shape, _dtype(node, metas)), *indices)


def _dtype(node: Node, metas: Sequence[TensorMeta]) -> str:
    given = [arg for arg in (*node.args, *node.kwargs.values()) if isinstance(arg, DType)]
    if given:
        return given[-1].name
    if node.op.split(".")[1] in _BOOLEAN:
        return "bool"
    floats = [meta.dtype for meta in metas if meta.dtype in FLOATS]
    return floats[0] if floats else metas[0].dtype
