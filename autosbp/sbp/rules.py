"""The op rules: one line per op family, as data. Rules that notation cannot say are functions, in one
private file per family (``_norms``, ``_shapes``, ...)."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping

from autosbp.errors import GraphError
from autosbp.graph.ir import Arg, LogicalGraph, Node, Ref, map_arg
from autosbp.graph.shapes import check_shape
from autosbp.sbp import _attention as attention
from autosbp.sbp import _changed_dims as dims
from autosbp.sbp import _convolution as convolution
from autosbp.sbp import _elementwise as elementwise
from autosbp.sbp import _experts as experts
from autosbp.sbp import _extrema as extrema
from autosbp.sbp import _indexing as indexing
from autosbp.sbp import _losses as losses
from autosbp.sbp import _norms as norms
from autosbp.sbp import _products as products
from autosbp.sbp import _ranges as ranges
from autosbp.sbp import _reductions as reductions
from autosbp.sbp import _shapes as shapes
from autosbp.sbp._op_lists import LOSSES, POINTWISE, POOLINGS
from autosbp.sbp.found import found_sharding
from autosbp.sbp.sharding import AxisOption, Rule, Sharding, axis_options, notation, tensor_inputs

RULES: Mapping[str, Rule] = {
    # matrix products
    "aten.linear.default": notation("b... k, n k, +[n] -> b... n", linear="0; 1", flops=2),
    "aten.mm.default": notation("m k, k n -> m n", linear="0; 1", flops=2),
    "aten.bmm.default": notation("b m k, b k n -> b m n", linear="0; 1", flops=2),
    "aten.addmm.default": products.added("m k, k n -> m n"),
    "aten.baddbmm.default": products.added("b m k, b k n -> b m n"),
    "aten.addbmm.default": products.added("b m k, b k n -> m n"),
    "aten.addmv.default": products.added("m k, k -> m"),
    "aten.mv.default": notation("m k, k -> m", linear="0; 1", flops=2),
    "aten.dot.default": notation("k, k ->", linear="0; 1", flops=2),
    "aten.outer.default": notation("m, n -> m n", linear="0; 1", flops=1),
    "aten.matmul.default": products.matmul,
    "aten.einsum.default": products.einsum,
    "autosbp.experts.default": experts.experts,
    # convolution and pooling
    **{f"aten.conv{n}d.{form}": convolution.convolution(n) for n in (1, 2, 3) for form in ("default", "padding")},
    "aten.conv_transpose1d.default": convolution.convolution(1, transposed=True),
    **{f"aten.conv_transpose{n}d.input": convolution.convolution(n, transposed=True) for n in (2, 3)},
    **{f"aten.{name}": convolution.pooling(spatial) for name, spatial in POOLINGS},
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
    **{f"aten.{name}": losses.elementwise_loss(position) for name, position in LOSSES},
    # picking, placing and ordering
    "aten.index.Tensor": indexing.index,
    "aten.index_put.default": indexing.index_put,
    "aten.index_select.default": indexing.index_select,
    "aten.index_add.default": indexing.index_add,
    **{f"aten.{name}": indexing.scatter for name in ("scatter.src", "scatter.value", "scatter_add.default")},
    "aten.scatter_reduce.two": indexing.scatter,
    "aten.topk.default": indexing.along(2),
    "aten.sort.default": indexing.along(1),
    "aten.argsort.default": indexing.along(1),
    "aten.cumsum.default": indexing.along(1, linear=True),
    "aten.cumprod.default": indexing.along(1),
    "aten.logcumsumexp.default": indexing.along(1),
    "aten.one_hot.default": indexing.one_hot,
    "aten.histc.default": indexing.histogram,
    "aten.bucketize.Tensor": notation("b..., n -> b...", whole="n"),
    # shapes
    "aten.reshape.default": shapes.reshape,
    "aten.permute.default": shapes.permute,
    "aten.expand.default": shapes.expand,
    "aten.slice.Tensor": shapes.slice_tensor,
    "aten.cat.default": shapes.cat,
    "aten.constant_pad_nd.default": shapes.pad,
    "aten.slice_scatter.default": dims.scattered_slice,
    "aten.select_scatter.default": dims.scattered_slice,
    "aten.flip.default": dims.rearranged(dims.argument(1)),
    "aten.roll.default": dims.rearranged(dims.argument(2, all_when_empty=True)),
    "aten.tril.default": dims.rearranged(dims.last(2)),
    "aten.triu.default": dims.rearranged(dims.last(2)),
    **{
        f"aten.{kind}_pad{n}d.default": dims.rearranged(dims.last(n))
        for kind in ("reflection", "replication")
        for n in (1, 2, 3)
    },
    "aten.glu.default": dims.glu,
    "aten.pixel_shuffle.default": dims.leading(1, space=(2, 3)),
    "aten.pixel_unshuffle.default": dims.leading(1, space=(2, 3)),
    "aten.im2col.default": dims.leading(1, space=(1,)),
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
    "aten.prod.dim_int": dims.reduced(dims.argument(1), 2),
    "aten.any.dim": dims.reduced(dims.argument(1), 2),
    "aten.all.dim": dims.reduced(dims.argument(1), 2),
    "aten.argmax.default": dims.reduced(dims.argument(1, all_when_empty=True), 2),
    "aten.argmin.default": dims.reduced(dims.argument(1, all_when_empty=True), 2),
    "aten.var.dim": dims.reduced(dims.argument(1, all_when_empty=True), 3),
    "aten.std.dim": dims.reduced(dims.argument(1, all_when_empty=True), 3),
    "aten.var.correction": dims.reduced(dims.argument(1, all_when_empty=True), 2),
    "aten.std.correction": dims.reduced(dims.argument(1, all_when_empty=True), 2),
    "aten.linalg_vector_norm.default": dims.vector_norm,
    "aten.norm.ScalarOpt_dim": dims.reduced(dims.argument(2), 3),
    # element-wise
    "aten.add.Tensor": elementwise.pointwise("0 1"),
    "aten.sub.Tensor": elementwise.pointwise("0 1"),
    "aten.rsub.Tensor": elementwise.pointwise("0 1"),
    "aten.mul.Tensor": elementwise.pointwise("0; 1"),
    "aten.div.Tensor": elementwise.pointwise("0"),
    "aten.mul.Scalar": elementwise.pointwise("0"),
    "aten.div.Scalar": elementwise.pointwise("0"),
    "aten.neg.default": elementwise.pointwise("0"),
    "aten.xlogy.Tensor": elementwise.pointwise("0"),
    "aten.__lshift__.Scalar": elementwise.pointwise("0"),
    "aten.detach.default": elementwise.pointwise("0"),
    "aten.to.dtype": elementwise.to_dtype,
    "aten.where.self": elementwise.pointwise("1 2"),
    "aten.where.ScalarOther": elementwise.where_number(2),
    "aten.where.ScalarSelf": elementwise.where_number(1),
    "aten.lerp.Scalar": elementwise.pointwise("0 1"),
    "aten.lerp.Tensor": elementwise.pointwise("0 1"),
    "aten.addcmul.default": elementwise.pointwise("0 1; 0 2"),
    "aten.addcdiv.default": elementwise.pointwise("0 1"),
    "aten.masked_fill.Scalar": elementwise.masked_fill,
    "aten.masked_fill.Tensor": elementwise.pointwise("0 2"),
    "aten.dropout.default": elementwise.dropout,
    **{f"aten.{name}": elementwise.pointwise("") for name in POINTWISE},
}

KEYWORDS = frozenset(
    ("alpha", "approximate", "beta", "correction", "dtype", "enable_gqa", "include_self", "log_target", "out_int32", "path",
     "right", "rounding_mode", "scale", "value")
)  # fmt: skip
"""Keyword arguments that no rule needs to know. Rules read all others by position, where capture puts them."""

_OP = re.compile(r"[A-Za-z_]\w*\.[A-Za-z_]\w*\.[A-Za-z_]\w*")
_TENSOR = object()
_WHOLE = Sharding(())
_MAX_KNOWN = 16_384
_known: dict[Hashable, Sharding] = {}


def sharding_of(graph: LogicalGraph, node: Node) -> Sharding:
    """The node's factors in a bound graph; a contradictory shape is a ``GraphError``. An op without a rule in ``RULES`` has
    the one that its graph holds for it; without either it runs whole on every rank."""
    known = graph.derived.get(("sharding", node.name))
    if known is not None and known[0] is node:
        found: Sharding = known[1]
        return found
    sharding = _sharding_of(graph, node)
    graph.derived["sharding", node.name] = node, sharding
    return sharding


def _sharding_of(graph: LogicalGraph, node: Node) -> Sharding:
    rule = RULES.get(node.op)
    if rule is None:
        return _found(graph, node) if node.rule else _WHOLE
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


def _found(graph: LogicalGraph, node: Node) -> Sharding:
    """By the rule in the graph; repeated blocks share it."""
    metas = tensor_inputs(graph, node)
    rule = graph.rules.get(node.rule)
    if rule is None:
        raise GraphError(f"{node.name}.rule", node.rule, f"rules of the graph are {', '.join(graph.rules) or 'none'}")
    words = tuple((word, map_arg(arg, _blank)) for word, arg in sorted(node.kwargs.items()))
    key = (rule, tuple(map_arg(arg, _blank) for arg in node.args), words, tuple(metas), node.outputs)
    if key not in _known:
        if len(_known) >= _MAX_KNOWN:
            _known.clear()
        _known[key] = found_sharding(rule, node, metas)
    return _known[key]


def _blank(arg: Arg) -> Arg:
    return _TENSOR if isinstance(arg, Ref) else arg


def _malformed(node: Node, error: Exception) -> GraphError:
    return GraphError(f"{node.name}.args", node.args, f"the arguments of {node.op} are expected ({error})")


def node_options(graph: LogicalGraph, node: Node) -> tuple[AxisOption, ...]:
    """Every legal layout of the node on one mesh axis."""
    known = graph.derived.get(("options", node.name))
    if known is not None and known[0] is node:
        options: tuple[AxisOption, ...] = known[1]
        return options
    options = _options(graph, node)
    graph.derived["options", node.name] = node, options
    return options


def _options(graph: LogicalGraph, node: Node) -> tuple[AxisOption, ...]:
    sends = node.name in graph.differentiable
    ins = tuple(sends and graph.has_gradient(ref) for ref in node.refs())
    outs = tuple(graph.has_gradient(Ref(node.name, index)) for index in range(len(node.outputs)))
    return axis_options(sharding_of(graph, node), ins, outs)


def check_graph(graph: LogicalGraph) -> None:
    """Check every op and shape of a graph, bound at the sizes it was captured with and one more; ``GraphError``."""
    bound = graph.captured
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
