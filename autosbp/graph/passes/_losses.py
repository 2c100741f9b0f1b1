"""Cross-entropies as log-softmax, gather and sums.

``cross_entropy(mean)`` with ignored labels has a different count on every shard; a sum divided by a sum is exact on
any.
"""

from __future__ import annotations

from dataclasses import dataclass

from autosbp.errors import UnsupportedError
from autosbp.graph.ir import LogicalGraph, Node, Ref
from autosbp.graph.passes._graph_edits import producers
from autosbp.graph.passes._means import accumulation_dtype, build_sum
from autosbp.graph.passes._op_rewrites import NodeBuilder, argument, count, rewrite

_NONE, _MEAN = 0, 1
_LIKELIHOODS = ("nll_loss_nd.default", "nll_loss.default", "nll_loss2d.default")


def explicit_cross_entropy(graph: LogicalGraph) -> LogicalGraph:
    """Replace ``cross_entropy_loss`` and ``nll_loss`` by log-softmax, gather, mask, sum and division.

    A flattening ``reshape`` before the loss is undone, so that sequence and batch stay separate dims. A class dim 1 of
    inputs with more than two dims is moved last. Class weights, label smoothing and probability labels follow torch's
    definitions.
    """
    made_by = producers(graph)

    def cross_entropy(build: NodeBuilder, node: Node) -> Ref:
        logits, labels = _unflattened(build, made_by, node)
        soft = build.meta(labels).is_float
        classes = len(build.shape(logits)) - 1 if logits != node.args[0] else min(1, len(build.shape(logits)) - 1)
        logits = _move_to_last(build, logits, classes)
        logp = build.same("log_softmax.int", logits, len(build.shape(logits)) - 1)
        smoothing = float(argument(node, 5, 0.0, "label_smoothing"))
        if soft:
            return _probability_label_loss(build, node, logp, _move_to_last(build, labels, classes), smoothing)
        return _ClassLabelLoss(build, node, logp, labels, smoothing).loss()

    def likelihood(build: NodeBuilder, node: Node) -> Ref:
        logp = _move_to_last(build, node.args[0], min(1, len(build.shape(node.args[0])) - 1))
        return _ClassLabelLoss(build, node, logp, node.args[1], 0.0).loss()

    changes = dict.fromkeys((f"aten.{name}" for name in _LIKELIHOODS), likelihood)
    return rewrite(graph, {**changes, "aten.cross_entropy_loss.default": cross_entropy})


def _unflattened(build: NodeBuilder, made_by: dict[str, Node], node: Node) -> tuple[Ref, Ref]:
    """Logits and labels before both were flattened to rows, if they were."""
    logits, labels = node.args[:2]
    one, two = made_by.get(logits.name), made_by.get(labels.name)
    if one is None or two is None or one.op != "aten.reshape.default" or two.op != "aten.reshape.default":
        return logits, labels
    if argument(node, 3, _MEAN, "reduction") == _NONE or len(build.shape(logits)) != 2:
        return logits, labels
    before, ids = one.args[0], two.args[0]
    shape = build.shape(before)
    same_classes = len(shape) > 1 and shape[-1] == build.shape(logits)[-1]
    return (before, ids) if same_classes and shape[:-1] == build.shape(ids) else (logits, labels)


def _move_to_last(build: NodeBuilder, source: Ref, dim: int) -> Ref:
    order = [at for at in range(len(build.shape(source))) if at != dim]
    return build.permute(source, (*order, dim))


@dataclass
class _ClassLabelLoss:
    """Builder of one loss with class labels; ``logp`` has its class dim last."""

    build: NodeBuilder
    node: Node
    logp: Ref
    labels: Ref
    smoothing: float

    def loss(self) -> Ref:
        build, node, dtype = self.build, self.node, self.build.meta(self.logp).dtype
        weight = argument(node, 2, None, "weight")
        reduction = argument(node, 3, _MEAN, "reduction")
        ignore = int(argument(node, 4, -100, "ignore_index"))
        ignored = build.same("eq.Scalar", self.labels, ignore, dtype="bool")
        safe = build.same("masked_fill.Scalar", self.labels, ignored, 0)
        kept = build.same("masked_fill.Scalar", self._weighted(self._picked(safe), weight, safe), ignored, 0)
        if reduction == _NONE:
            return self._smoothed(build.same("neg.default", kept), ignored, weight)
        accumulated = accumulation_dtype(dtype)
        loss = build.same("neg.default", build_sum(build, kept, None, accumulated))
        if self.smoothing:
            spread = build.same("neg.default", build_sum(build, self._spread(ignored, weight), None, accumulated))
            loss = self._mixed(loss, spread)
        if reduction == _MEAN:
            loss = build.op("div.Tensor", loss, self._count(ignore, ignored, weight, safe), shape=(), dtype=accumulated)
        return build.cast(loss, dtype)

    def _picked(self, safe: Ref) -> Ref:
        """Log-probabilities of the labels."""
        build, dim = self.build, len(self.build.shape(safe))
        index = build.reshape(safe, (*build.shape(safe), 1))
        picked = build.op(
            "gather.default", self.logp, dim, index, shape=build.shape(index), dtype=build.meta(self.logp).dtype
        )
        return build.reshape(picked, build.shape(safe))

    def _weighted(self, values: Ref, weight: Ref | None, safe: Ref) -> Ref:
        return values if weight is None else self.build.same("mul.Tensor", values, self._weights(weight, safe))

    def _weights(self, weight: Ref, safe: Ref) -> Ref:
        """Each label's class weight."""
        dtype = self.build.meta(weight).dtype
        return self.build.op("index.Tensor", weight, (safe,), shape=self.build.shape(safe), dtype=dtype)

    def _count(self, ignore: int, ignored: Ref, weight: Ref | None, safe: Ref) -> Ref:
        build, dtype = self.build, self.build.meta(self.logp).dtype
        if weight is not None:
            valid = build.same("masked_fill.Scalar", self._weights(weight, safe), ignored, 0)
        else:
            valid = build.cast(build.same("ne.Scalar", self.labels, ignore, dtype="bool"), accumulation_dtype(dtype))
        return build_sum(build, valid, None, accumulation_dtype(dtype))

    def _spread(self, ignored: Ref, weight: Ref | None) -> Ref:
        """Weighted sum over classes of the log-probabilities, 0 for ignored labels."""
        build = self.build
        values = self.logp if weight is None else build.same("mul.Tensor", self.logp, weight)
        added = build_sum(build, values, (len(build.shape(values)) - 1,), build.meta(values).dtype)
        return build.same("masked_fill.Scalar", added, ignored, 0)

    def _smoothed(self, values: Ref, ignored: Ref, weight: Ref | None) -> Ref:
        if not self.smoothing:
            return values
        return self._mixed(values, self.build.same("neg.default", self._spread(ignored, weight)))

    def _mixed(self, one: Ref, spread: Ref) -> Ref:
        build, classes = self.build, self.build.shape(self.logp)[-1]
        if not isinstance(classes, int):
            raise UnsupportedError(f"{self.node.name}: label smoothing over the batch dim is not supported")
        left = build.same("mul.Tensor", one, 1.0 - self.smoothing)
        right = build.same("mul.Tensor", spread, self.smoothing / classes)
        return build.same("add.Tensor", left, right)


def _probability_label_loss(build: NodeBuilder, node: Node, logp: Ref, labels: Ref, smoothing: float) -> Ref:
    """Loss with probability labels: a sum over classes, and the reduction over all other dims."""
    dtype, shape = build.meta(logp).dtype, build.shape(logp)
    weight, reduction = argument(node, 2, None, "weight"), argument(node, 3, _MEAN, "reduction")
    if smoothing:
        if not isinstance(shape[-1], int):
            raise UnsupportedError(f"{node.name}: label smoothing over the batch dim is not supported")
        labels = build.same("mul.Tensor", labels, 1.0 - smoothing)
        labels = build.same("add.Tensor", labels, smoothing / shape[-1])
    terms = build.same("mul.Tensor", logp, labels)
    if weight is not None:
        terms = build.same("mul.Tensor", terms, weight)
    if reduction == _NONE:
        return build.same("neg.default", build_sum(build, terms, (len(shape) - 1,), dtype))
    loss = build.same("neg.default", build_sum(build, terms, None, accumulation_dtype(dtype)))
    if reduction == _MEAN and len(shape) > 1:
        number = count(shape[:-1])
        if number is None:
            raise UnsupportedError(
                f"{node.name}: a mean over {shape[:-1]} is not supported, because a size is a sum of symbols"
            )
        loss = build.same("div.Tensor", loss, float(number) if isinstance(number, int) else number)
    return build.cast(loss, dtype)
