"""Canonicalise op aliases: replace ops that equal another op, or another op with other arguments."""

from __future__ import annotations

from collections.abc import Mapping

from autosbp.graph.ir import LogicalGraph, Node, Ref
from autosbp.graph.passes._op_rewrites import NodeBuilder, Rewrite, argument, rewrite

_ALIASES: Mapping[str, str] = {
    "absolute.default": "abs.default",
    "arccos.default": "acos.default",
    "arccosh.default": "acosh.default",
    "arcsin.default": "asin.default",
    "arcsinh.default": "asinh.default",
    "arctan.default": "atan.default",
    "arctan2.default": "atan2.default",
    "arctanh.default": "atanh.default",
    "clip.default": "clamp.default",
    "clip.Tensor": "clamp.Tensor",
    "divide.Scalar": "div.Scalar",
    "divide.Tensor": "div.Tensor",
    "divide.Tensor_mode": "div.Tensor_mode",
    "fix.default": "trunc.default",
    "ger.default": "outer.default",
    "greater.Scalar": "gt.Scalar",
    "greater.Tensor": "gt.Tensor",
    "greater_equal.Scalar": "ge.Scalar",
    "greater_equal.Tensor": "ge.Tensor",
    "less.Scalar": "lt.Scalar",
    "less.Tensor": "lt.Tensor",
    "less_equal.Scalar": "le.Scalar",
    "less_equal.Tensor": "le.Tensor",
    "linalg_matmul.default": "matmul.default",
    "max.other": "maximum.default",
    "min.other": "minimum.default",
    "multiply.Scalar": "mul.Scalar",
    "multiply.Tensor": "mul.Tensor",
    "negative.default": "neg.default",
    "not_equal.Scalar": "ne.Scalar",
    "not_equal.Tensor": "ne.Tensor",
    "special_erf.default": "erf.default",
    "special_erfc.default": "erfc.default",
    "special_erfinv.default": "erfinv.default",
    "special_exp2.default": "exp2.default",
    "special_expit.default": "sigmoid.default",
    "special_expm1.default": "expm1.default",
    "special_gammaln.default": "lgamma.default",
    "special_log1p.default": "log1p.default",
    "special_log_softmax.default": "log_softmax.int",
    "special_logsumexp.default": "logsumexp.default",
    "special_softmax.default": "softmax.int",
    "special_xlogy.default": "xlogy.Tensor",
    "subtract.Scalar": "sub.Scalar",
    "subtract.Tensor": "sub.Tensor",
    "true_divide.Scalar": "div.Scalar",
    "true_divide.Tensor": "div.Tensor",
}


def canonicalize_aliases(graph: LogicalGraph) -> LogicalGraph:
    """Replace aliases by their canonical op, and ops that simplify to other ops."""
    masks = {ref.name for node in graph.nodes for ref in node.refs() if ref.index}

    def dropout(build: NodeBuilder, node: Node) -> tuple[Ref, ...] | None:
        """``native_dropout(x, p, train)`` whose mask nobody reads."""
        source, rate, training = node.args[:3]
        if node.name in masks:
            return None
        return (build.same("dropout.default", source, rate, True if training is None else training),)

    return rewrite(graph, {**_CHANGES, "aten.native_dropout.default": dropout})


def _renamed_op(op: str) -> Rewrite:
    def change(build: NodeBuilder, node: Node) -> Ref:
        out = node.outputs[0]
        return build.op(op, *node.args, shape=out.shape, dtype=out.dtype, kwargs=node.kwargs)

    return change


def _weight_norm(build: NodeBuilder, node: Node) -> Ref:
    """``v * (g / norm(v))`` with a norm for each index of one dim."""
    direction, length = node.args[:2]
    shape, dtype = build.shape(direction), build.meta(direction).dtype
    kept = argument(node, 2, 0, "dim") % len(shape)
    dims = tuple(dim for dim in range(len(shape)) if dim != kept)
    small = tuple(size if dim == kept else 1 for dim, size in enumerate(shape))
    norm = build.op("linalg_vector_norm.default", direction, 2, dims, True, shape=small, dtype=dtype)
    return build.same("mul.Tensor", direction, build.op("div.Tensor", length, norm, shape=small, dtype=dtype))


def _prelu(build: NodeBuilder, node: Node) -> Ref:
    """``x`` where it is positive, else ``w x`` with a weight for each channel."""
    source, weight = node.args
    shape, dtype = build.shape(source), build.meta(source).dtype
    if len(shape) > 1:
        weight = build.reshape(weight, (build.shape(weight)[0] if build.shape(weight) else 1, *(1,) * (len(shape) - 2)))
    positive = build.same("gt.Scalar", source, 0, dtype="bool")
    return build.same("where.self", positive, source, build.same("mul.Tensor", source, weight), dtype=dtype)


def _instance_norm(build: NodeBuilder, node: Node) -> Ref | None:
    """With per-sample statistics: a group norm with a group for each channel."""
    source, weight, bias = node.args[:3]
    if not argument(node, 5, True, "use_input_stats"):
        return None
    eps = argument(node, 7, 1e-5, "eps")
    return build.same("group_norm.default", source, build.shape(source)[1], weight, bias, eps)


def _vector_product(build: NodeBuilder, node: Node) -> Ref | None:
    """``matmul`` with a vector, as a matrix of one row or column."""
    left, right = node.args[:2]
    one, two, out = build.shape(left), build.shape(right), node.outputs[0]
    if len(one) > 1 and len(two) > 1:
        return None
    if len(one) == len(two) == 1:
        return build.op("dot.default", left, right, shape=(), dtype=out.dtype)
    if len(one) == 1:
        left = build.reshape(left, (1, *one))
        shape = (*out.shape[:-1], 1, out.shape[-1])
    else:
        right = build.reshape(right, (*two, 1))
        shape = (*out.shape, 1)
    return build.reshape(build.op("matmul.default", left, right, shape=shape, dtype=out.dtype), out.shape)


def _diff(build: NodeBuilder, node: Node) -> Ref | None:
    """Differences of neighbours along a dim, ``n`` times, as a difference of two slices."""
    source, times = node.args[0], argument(node, 1, 1, "n")
    shape, dtype = build.shape(source), build.meta(source).dtype
    dim = argument(node, 2, -1, "dim") % len(shape)
    ends = [argument(node, 3, None, "prepend"), source, argument(node, 4, None, "append")]
    parts = [each for each in ends if each is not None]
    lengths = [build.shape(each)[dim] for each in parts]
    if dtype == "bool" or not all(isinstance(size, int) for size in lengths) or not 0 < times < sum(map(int, lengths)):
        return None
    length = sum(map(int, lengths))
    value = parts[0] if len(parts) == 1 else build.cat(parts, dim, length)
    for _ in range(times):
        later, earlier = build.slice(value, dim, 1, length), build.slice(value, dim, 0, length - 1)
        value, length = build.same("sub.Tensor", later, earlier), length - 1
    return value


def _exponential(build: NodeBuilder, node: Node) -> Ref:
    """``x.exponential_(rate)``, from uniform numbers."""
    drawn = build.same("log1p.default", build.same("neg.default", build.same("rand_like.default", node.args[0])))
    return build.same("div.Tensor", build.same("neg.default", drawn), argument(node, 1, 1.0, "lambd"))


def _uniform(build: NodeBuilder, node: Node) -> Ref:
    """``x.uniform_(low, high)``."""
    low, high = argument(node, 1, 0.0, "from"), argument(node, 2, 1.0, "to")
    drawn = build.same("mul.Tensor", build.same("rand_like.default", node.args[0]), high - low)
    return build.same("add.Tensor", drawn, low)


def _normal(build: NodeBuilder, node: Node) -> Ref:
    """``x.normal_(mean, std)``."""
    mean, std = argument(node, 1, 0.0, "mean"), argument(node, 2, 1.0, "std")
    return build.same("add.Tensor", build.same("mul.Tensor", build.same("randn_like.default", node.args[0]), std), mean)


_CHANGES: Mapping[str, Rewrite] = {
    **{f"aten.{name}": _renamed_op(op) for name, op in _ALIASES.items()},
    "aten._weight_norm.default": _weight_norm,
    "aten.prelu.default": _prelu,
    "aten.diff.default": _diff,
    "aten.exponential.default": _exponential,
    "aten.uniform.default": _uniform,
    "aten.normal_functional.default": _normal,
    "aten.instance_norm.default": _instance_norm,
    "aten.matmul.default": _vector_product,
}
