"""Table of sharding rules, one line per op family.

Rules that factor notation cannot express are functions, in one private file per family (``_norms``, ``_shapes``, ...).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from autosbp.errors import GraphError
from autosbp.graph.allowed_ops import check_op
from autosbp.graph.argument_checks import MALFORMED_ERRORS, check_arguments, malformed_arguments_error
from autosbp.graph.index_bounds import check_bounds
from autosbp.graph.ir import Arg, LogicalGraph, Node, Ref, map_arg
from autosbp.graph.shape_inference import check_shape
from autosbp.sbp import _attention as attention
from autosbp.sbp import _convolution as convolution
from autosbp.sbp import _dim_moves as dims
from autosbp.sbp import _elementwise as elementwise
from autosbp.sbp import _embedding as ranges
from autosbp.sbp import _experts as experts
from autosbp.sbp import _extrema as extrema
from autosbp.sbp import _indexing as indexing
from autosbp.sbp import _losses as losses
from autosbp.sbp import _matmul as products
from autosbp.sbp import _norms as norms
from autosbp.sbp import _reductions as reductions
from autosbp.sbp import _shapes as shapes
from autosbp.sbp._op_lists import LOSSES, POINTWISE, POOLINGS
from autosbp.sbp.discovered_rules import discovered_sharding
from autosbp.sbp.factor_notation import AxisOption, Rule, Sharding, axis_options, notation, tensor_inputs

RULES: Mapping[str, Rule] = {
    # matrix products
    "aten.linear.default": notation("b... k, n k, +[n] -> b... n", linear="0; 1", flops=2),
    "aten.mm.default": notation("m k, k n -> m n", linear="0; 1", flops=2),
    "aten.bmm.default": notation("b m k, b k n -> b m n", linear="0; 1", flops=2),
    "aten.addmm.default": products.addmm_rule("m k, k n -> m n"),
    "aten.baddbmm.default": products.addmm_rule("b m k, b k n -> b m n"),
    "aten.addbmm.default": products.addmm_rule("b m k, b k n -> m n"),
    "aten.addmv.default": products.addmm_rule("m k, k -> m"),
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
    # reads and writes by index, sorts and scans
    "aten.index.Tensor": indexing.index,
    "aten.index_put.default": indexing.index_put,
    "aten.index_select.default": indexing.index_select,
    "aten.index_add.default": indexing.index_add,
    **{f"aten.{name}": indexing.scatter for name in ("scatter.src", "scatter.value", "scatter_add.default")},
    "aten.scatter_reduce.two": indexing.scatter,
    "aten.topk.default": indexing.whole_dim_rule(2),
    "aten.sort.default": indexing.whole_dim_rule(1),
    "aten.argsort.default": indexing.whole_dim_rule(1),
    "aten.cumsum.default": indexing.whole_dim_rule(1, linear=True),
    "aten.cumprod.default": indexing.whole_dim_rule(1),
    "aten.logcumsumexp.default": indexing.whole_dim_rule(1),
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
    "aten.slice_scatter.default": dims.slice_scatter_rule,
    "aten.select_scatter.default": dims.slice_scatter_rule,
    "aten.flip.default": dims.rearrangement_rule(dims.dims_from_argument(1)),
    "aten.roll.default": dims.rearrangement_rule(dims.dims_from_argument(2, all_when_empty=True)),
    "aten.tril.default": dims.rearrangement_rule(dims.last_dims(2)),
    "aten.triu.default": dims.rearrangement_rule(dims.last_dims(2)),
    **{
        f"aten.{kind}_pad{n}d.default": dims.rearrangement_rule(dims.last_dims(n))
        for kind in ("reflection", "replication")
        for n in (1, 2, 3)
    },
    "aten.glu.default": dims.glu,
    "aten.pixel_shuffle.default": dims.leading_dims_rule(1, space=(2, 3)),
    "aten.pixel_unshuffle.default": dims.leading_dims_rule(1, space=(2, 3)),
    "aten.im2col.default": dims.leading_dims_rule(1, space=(1,)),
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
    "aten.prod.dim_int": dims.whole_dim_reduction_rule(dims.dims_from_argument(1), 2),
    "aten.any.dim": dims.whole_dim_reduction_rule(dims.dims_from_argument(1), 2),
    "aten.all.dim": dims.whole_dim_reduction_rule(dims.dims_from_argument(1), 2),
    "aten.argmax.default": dims.whole_dim_reduction_rule(dims.dims_from_argument(1, all_when_empty=True), 2),
    "aten.argmin.default": dims.whole_dim_reduction_rule(dims.dims_from_argument(1, all_when_empty=True), 2),
    "aten.var.dim": dims.whole_dim_reduction_rule(dims.dims_from_argument(1, all_when_empty=True), 3),
    "aten.std.dim": dims.whole_dim_reduction_rule(dims.dims_from_argument(1, all_when_empty=True), 3),
    "aten.var.correction": dims.whole_dim_reduction_rule(dims.dims_from_argument(1, all_when_empty=True), 2),
    "aten.std.correction": dims.whole_dim_reduction_rule(dims.dims_from_argument(1, all_when_empty=True), 2),
    "aten.linalg_vector_norm.default": dims.vector_norm,
    "aten.norm.ScalarOpt_dim": dims.whole_dim_reduction_rule(dims.dims_from_argument(2), 3),
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
"""Keyword arguments that rules ignore. Rules read all other arguments by position; capture makes them positional."""

_TENSOR = object()
_WHOLE = Sharding(())
_MAX_KNOWN = 16_384
_sharding_cache: dict[Hashable, Sharding] = {}


def sharding_of(graph: LogicalGraph, node: Node) -> Sharding:
    """The node's factors in a bound graph; raises ``GraphError`` if shapes contradict the rule.

    An op without an entry in ``RULES`` uses the rule stored in its graph; without either, every rank runs the whole op.
    """
    known = graph.cache.get(("sharding", node.name))
    if known is not None and known[0] is node:
        found: Sharding = known[1]
        return found
    sharding = _sharding_of(graph, node)
    graph.cache["sharding", node.name] = node, sharding
    return sharding


def _sharding_of(graph: LogicalGraph, node: Node) -> Sharding:
    rule = RULES.get(node.op)
    if rule is None:
        return _stored_rule_sharding(graph, node) if node.rule else _WHOLE
    for word in node.kwargs:
        if word not in KEYWORDS:
            raise GraphError(
                f"{node.name}.kwargs.{word}", word, (f"only {', '.join(sorted(KEYWORDS))} can be keyword arguments")
            )
    metas = tensor_inputs(graph, node)
    # Rules depend on attributes and shapes only, so repeated blocks share the result.
    key = (node.op, tuple(map_arg(arg, _blank) for arg in node.args), tuple(metas), node.outputs)
    known = _sharding_cache.get(key)
    if known is None:
        try:
            known = rule(node, metas)
        except MALFORMED_ERRORS as error:
            raise malformed_arguments_error(node, error) from None
        if len(_sharding_cache) >= _MAX_KNOWN:
            _sharding_cache.clear()
        _sharding_cache[key] = known
    return known


def _stored_rule_sharding(graph: LogicalGraph, node: Node) -> Sharding:
    """Sharding by the rule stored in the graph; repeated blocks share it."""
    metas = tensor_inputs(graph, node)
    rule = graph.rules.get(node.rule)
    if rule is None:
        raise GraphError(f"{node.name}.rule", node.rule, f"rules of the graph are {', '.join(graph.rules) or 'none'}")
    words = tuple((word, map_arg(arg, _blank)) for word, arg in sorted(node.kwargs.items()))
    key = (rule, tuple(map_arg(arg, _blank) for arg in node.args), words, tuple(metas), node.outputs)
    if key not in _sharding_cache:
        if len(_sharding_cache) >= _MAX_KNOWN:
            _sharding_cache.clear()
        _sharding_cache[key] = discovered_sharding(rule, node, metas)
    return _sharding_cache[key]


def _blank(arg: Arg) -> Arg:
    return _TENSOR if isinstance(arg, Ref) else arg


def node_options(graph: LogicalGraph, node: Node) -> tuple[AxisOption, ...]:
    """Every legal layout of the node on one mesh axis."""
    known = graph.cache.get(("options", node.name))
    if known is not None and known[0] is node:
        options: tuple[AxisOption, ...] = known[1]
        return options
    options = _options(graph, node)
    graph.cache["options", node.name] = node, options
    return options


def _options(graph: LogicalGraph, node: Node) -> tuple[AxisOption, ...]:
    sends = node.name in graph.differentiable
    ins = tuple(sends and graph.has_gradient(ref) for ref in node.refs())
    outs = tuple(graph.has_gradient(Ref(node.name, index)) for index in range(len(node.outputs)))
    return axis_options(sharding_of(graph, node), ins, outs)


def check_graph(graph: LogicalGraph) -> None:
    """Check every op and shape of a graph, at its captured sizes and with every symbol one larger.

    Raises:
        GraphError: an op is not allowed, an argument, shape or index bound is wrong, or the loss depends on no
            parameter.
    """
    bound = graph.bound_at_capture
    _check_nodes(bound)
    check_bounds(graph)
    if graph.symbols:
        _check_nodes(graph.bind(**{symbol: size + 1 for symbol, size in graph.symbols.items()}))
    if bound.loss.name not in bound.differentiable:
        raise GraphError("loss", bound.loss.name, "the loss must depend on a parameter")


def _check_nodes(bound: LogicalGraph) -> None:
    for node in bound.nodes:
        check_op(node.op, f"{node.name}.op")
        sharding = sharding_of(bound, node)
        if any(len(factor.outs) != len(node.outputs) for factor in sharding.factors):
            expected = len(sharding.factors[0].outs)
            raise GraphError(f"{node.name}.outputs", len(node.outputs), f"expected {expected} outputs of {node.op}")
        try:
            check_arguments(node, bound.meta)
            check_shape(node, tensor_inputs(bound, node))
        except MALFORMED_ERRORS as error:
            raise malformed_arguments_error(node, error) from None
