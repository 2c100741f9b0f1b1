"""Rules of norms and of softmax, which normalise over dims."""

from __future__ import annotations

from collections.abc import Sequence

from autosbp.graph.ir import Node, TensorMeta
from autosbp.sbp._common import aligned, dim_argument
from autosbp.sbp.sharding import FactorTable, Sharding


def layer_norm(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
    """``b... d..., [d...], [d...] -> b... d... | whole d``."""
    normalized = node.args[1]
    lead = len(metas[0].shape) - len(normalized)
    names = [f"b{dim}" for dim in range(lead)] + [f"d{dim}" for dim in range(len(normalized))]
    table = FactorTable(node, len(metas), 1)
    table.hold(0, names, metas[0], output=False)
    table.hold(0, names, node.outputs[0], output=True)
    for index in range(1, len(metas)):
        table.hold(index, names[lead:], metas[index], output=False)
    return Sharding(table.factors({"d"}))


def _same_shape(
    node: Node, metas: Sequence[TensorMeta], whole: set[int], *, split_impls: tuple[str, ...] = ()
) -> Sharding:
    table = aligned(node, metas[:1])
    return Sharding(table.factors({f"d{dim}" for dim in whole}), split_impls=split_impls)


def softmax(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
    """Every dim but the normalised one."""
    return _same_shape(node, metas, {dim_argument(node, 1, len(metas[0].shape))})


def log_softmax(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
    """As softmax; a program with two reductions (``executor.ops``), which does not cast, splits the normalised dim."""
    dim = dim_argument(node, 1, len(metas[0].shape))
    casts = metas[0].dtype != node.outputs[0].dtype
    return _same_shape(node, metas, {dim}, split_impls=() if casts else (f"d{dim}",))
