"""Split element-wise losses with a mean into the loss of each element, a sum and a division by the count."""

from __future__ import annotations

from collections.abc import Mapping

from autosbp.graph.ir import LogicalGraph, Node, Ref
from autosbp.graph.passes._means import accumulation_dtype, build_sum
from autosbp.graph.passes._op_rewrites import NodeBuilder, Rewrite, argument, count, rewrite

_MEAN = 1
_POSITIONS: Mapping[str, int] = {
    "mse_loss.default": 2,
    "l1_loss.default": 2,
    "smooth_l1_loss.default": 2,
    "huber_loss.default": 2,
    "kl_div.default": 2,
    "soft_margin_loss.default": 2,
    "binary_cross_entropy.default": 3,
    "binary_cross_entropy_with_logits.default": 4,
}
"""Position of each loss's reduction argument: 0 none, 1 mean, 2 sum."""


def explicit_loss_means(graph: LogicalGraph) -> LogicalGraph:
    """Rewrite ``mse_loss(x, y)`` and the like to ``sum(mse_loss(x, y, reduction=none)) / n``, or to a sum."""
    return rewrite(graph, {f"aten.{name}": _reduced(position) for name, position in _POSITIONS.items()})


def _reduced(position: int) -> Rewrite:
    def change(build: NodeBuilder, node: Node) -> Ref | None:
        reduction = argument(node, position, _MEAN, "reduction")
        if reduction == 0:
            return None
        one, two = (build.meta(ref) for ref in node.args[:2])
        shape = one.shape if len(one.shape) >= len(two.shape) else two.shape
        same = one.shape == two.shape or () in (one.shape, two.shape)
        number = count(shape)
        if not same or (number is None and reduction == _MEAN):
            return None
        dtype = node.outputs[0].dtype
        args = [*node.args[:position], *(None,) * (position - len(node.args)), 0, *node.args[position + 1 :]]
        kwargs = {key: value for key, value in node.kwargs.items() if key != "reduction"}
        each = build.op(node.op.removeprefix("aten."), *args, shape=shape, dtype=dtype, kwargs=kwargs)
        added = build_sum(build, each, None, accumulation_dtype(dtype))
        if reduction == _MEAN:
            added = build.same("div.Tensor", added, float(number) if isinstance(number, int) else number)
        return build.cast(added, dtype)

    return change
