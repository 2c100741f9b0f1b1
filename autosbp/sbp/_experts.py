"""Sharding rule of a mixture of experts as one op (``graph.experts_op.experts``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autosbp.graph.ir import Node, TensorMeta
from autosbp.sbp.factor_notation import Sharding, notation

_NOTATION = notation("t d, t k, t k, e f d, e f d, e d f -> t d", linear="2; 5", whole="d k e", split_impls=("e",))


def experts(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
    """Axes may split tokens (t), hidden width (f) and experts (e); a rank adds the output of its own experts only.

    FLOPs: each of t k slots takes three products of d f multiply-adds.
    """
    tokens, width = metas[0].sizes
    slots, inner = metas[1].sizes[1], metas[3].sizes[1]
    return replace(_NOTATION(node, metas), flops=6.0 * tokens * slots * width * inner)
