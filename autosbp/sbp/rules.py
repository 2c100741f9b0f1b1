"""The op rules: one line per op family, as data. Rules that notation cannot say are functions, in one
private file per family (``_norms``, ``_shapes``, ...)."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping

from autosbp.errors import GraphError
from autosbp.graph.ir import Arg, LogicalGraph, Node, Ref, map_arg
from autosbp.graph.shapes import check_shape
from autosbp.sbp import _attention as attention
from autosbp.sbp import _convolution as convolution
from autosbp.sbp import _elementwise as elementwise
from autosbp.sbp import _extrema as extrema
from autosbp.sbp import _norms as norms
from autosbp.sbp import _products as products
from autosbp.sbp import _ranges as ranges
from autosbp.sbp import _reductions as reductions
from autosbp.sbp import _shapes as shapes
from autosbp.sbp.sharding import AxisOption, Rule, Sharding, axis_options, notation, tensor_inputs

_POINTWISE = [
    "gelu.default",
    "relu.default",
    "silu.default",
    "tanh.default",
    "sigmoid.default",
    "exp.default",
    "log.default",
    "rsqrt.default",
    "sqrt.default",
    "pow.Tensor_Scalar",
    "cos.default",
    "sin.default",
    "abs.default",
    "reciprocal.default",
    "erf.default",
    "eq.Scalar",
    "ne.Scalar",
    "lt.Scalar",
    "gt.Scalar",
    "le.Scalar",
    "ge.Scalar",
    "eq.Tensor",
    "ne.Tensor",
    "lt.Tensor",
    "gt.Tensor",
    "le.Tensor",
    "ge.Tensor",
    "logical_not.default",
    "logical_and.default",
    "logical_or.default",
    "bitwise_and.Tensor",
    "bitwise_or.Tensor",
    "bitwise_not.default",
    "__and__.Tensor",
    "__or__.Tensor",
    "clamp.default",
    "clamp_min.default",
    "minimum.default",
    "maximum.default",
    "hardtanh.default",
    "leaky_relu.default",
    "elu.default",
    "softplus.default",
    "add.Scalar",
    "sub.Scalar",
    "rsub.Scalar",
    "pow.Tensor_Tensor",
]

RULES: Mapping[str, Rule] = {
    # matrix products
    "aten.linear.default": notation("b... k, n k, +[n] -> b... n", linear="0; 1", flops=2),
    "aten.mm.default": notation("m k, k n -> m n", linear="0; 1", flops=2),
    "aten.bmm.default": notation("b m k, b k n -> b m n", linear="0; 1", flops=2),
    "aten.addmm.default": notation("+[n], m k, k n -> m n", linear="1; 2", flops=2),
    "aten.matmul.default": products.matmul,
    # convolution and pooling
    "aten.conv2d.default": convolution.conv2d,
    "aten.conv2d.padding": convolution.conv2d,
    "aten.max_pool2d.default": convolution.pooling,
    "aten.avg_pool2d.default": convolution.pooling,
    "aten.adaptive_avg_pool2d.default": convolution.pooling,
    # attention, normalisation, softmax, embedding, losses
    "aten.scaled_dot_product_attention.default": attention.attention,
    "aten.layer_norm.default": norms.layer_norm,
    "aten.rms_norm.default": norms.layer_norm,
    "aten.group_norm.default": norms.group_norm,
    "aten.batch_norm.default": norms.batch_norm,
    "aten.softmax.int": norms.softmax,
    "aten.log_softmax.int": norms.softmax,
    "aten.embedding.default": ranges.embedding,
    "aten.gather.default": ranges.gather,
    # shapes
    "aten.reshape.default": shapes.reshape,
    "aten.permute.default": shapes.permute,
    "aten.expand.default": shapes.expand,
    "aten.slice.Tensor": shapes.slice_tensor,
    "aten.cat.default": shapes.cat,
    "aten.constant_pad_nd.default": shapes.pad,
    # reductions
    "aten.sum.dim_IntList": reductions.sum_dims,
    "aten.sum.default": reductions.sum_dims,
    "aten.amax.default": extrema.extremum("max"),
    "aten.amin.default": extrema.extremum("min"),
    "aten.max.default": extrema.extremum("max"),
    "aten.min.default": extrema.extremum("min"),
    "aten.max.dim": extrema.extremum_with_index,
    "aten.min.dim": extrema.extremum_with_index,
    "aten.logsumexp.default": extrema.logsumexp,
    # element-wise
    "aten.add.Tensor": elementwise.pointwise("0 1"),
    "aten.sub.Tensor": elementwise.pointwise("0 1"),
    "aten.mul.Tensor": elementwise.pointwise("0; 1"),
    "aten.div.Tensor": elementwise.pointwise("0"),
    "aten.mul.Scalar": elementwise.pointwise("0"),
    "aten.div.Scalar": elementwise.pointwise("0"),
    "aten.neg.default": elementwise.pointwise("0"),
    "aten.detach.default": elementwise.pointwise("0"),
    "aten.to.dtype": elementwise.to_dtype,
    "aten.where.self": elementwise.pointwise("1 2"),
    "aten.masked_fill.Scalar": elementwise.masked_fill,
    "aten.dropout.default": elementwise.dropout,
    **{f"aten.{name}": elementwise.pointwise("") for name in _POINTWISE},
}

KEYWORDS = frozenset(("alpha", "approximate", "beta", "dtype", "enable_gqa", "scale"))
"""Keyword arguments that no rule needs to know. Rules read all others by position, where capture puts them."""

_OP = re.compile(r"[A-Za-z_]\w*\.[A-Za-z_]\w*\.[A-Za-z_]\w*")
_TENSOR = object()
_WHOLE = Sharding(())
_MAX_KNOWN = 16_384
_known: dict[Hashable, Sharding] = {}


def sharding_of(graph: LogicalGraph, node: Node) -> Sharding:
    """The node's factors in a bound graph; a contradictory shape is a ``GraphError``. An op without a rule has none: it
    runs whole on every rank."""
    rule = RULES.get(node.op)
    if rule is None:
        return _WHOLE
    for word in node.kwargs:
        if word not in KEYWORDS:
            raise GraphError(f"{node.name}.kwargs.{word}", word, f"only {', '.join(sorted(KEYWORDS))} may be keywords")
    metas = tensor_inputs(graph, node)
    # Rules look at attributes and shapes only, so repeated blocks share their result.
    key = (node.op, tuple(map_arg(arg, _blank) for arg in node.args), tuple(metas), node.outputs)
    known = _known.get(key)
    if known is None:
        try:
            known = rule(node, metas)
        except (TypeError, ValueError, IndexError, AttributeError) as error:
            raise _malformed(node, error) from None
        if len(_known) >= _MAX_KNOWN:
            _known.clear()
        _known[key] = known
    return known


def _blank(arg: Arg) -> Arg:
    return _TENSOR if isinstance(arg, Ref) else arg


def _malformed(node: Node, error: Exception) -> GraphError:
    return GraphError(f"{node.name}.args", node.args, f"the arguments of {node.op} are expected ({error})")


def node_options(graph: LogicalGraph, node: Node) -> tuple[AxisOption, ...]:
    """Every legal layout of the node on one mesh axis."""
    ins = tuple(graph.has_gradient(ref) for ref in node.refs())
    outs = tuple(graph.has_gradient(Ref(node.name, index)) for index in range(len(node.outputs)))
    return axis_options(sharding_of(graph, node), ins, outs)


def check_graph(graph: LogicalGraph) -> None:
    """Check every op and shape of a graph, bound at the sizes it was captured with and one more; ``GraphError``."""
    bound = graph.bind(**graph.symbols)
    _check_nodes(bound)
    if graph.symbols:
        _check_nodes(graph.bind(**{symbol: size + 1 for symbol, size in graph.symbols.items()}))
    if bound.loss.name not in bound.differentiable:
        raise GraphError("loss", bound.loss.name, "the loss must depend on a parameter")


def _check_nodes(bound: LogicalGraph) -> None:
    for node in bound.nodes:
        if not _OP.fullmatch(node.op):
            raise GraphError(f"{node.name}.op", node.op, "NAMESPACE.NAME.OVERLOAD is expected")
        sharding = sharding_of(bound, node)
        if any(len(factor.outs) != len(node.outputs) for factor in sharding.factors):
            expected = len(sharding.factors[0].outs)
            raise GraphError(f"{node.name}.outputs", len(node.outputs), f"{node.op} has {expected} output(s)")
        try:
            check_shape(node, tensor_inputs(bound, node))
        except (TypeError, ValueError, IndexError, AttributeError, ZeroDivisionError) as error:
            raise _malformed(node, error) from None
