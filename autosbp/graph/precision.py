"""Training precision of a graph: dtypes of parameters, activations, gradients and the optimizer.

| precision | parameters, matmuls | gradients: accumulated, reduced | optimizer |
|---|---|---|---|
| ``fp32`` | float32 | float32 | float32 |
| ``tf32`` | float32, matmuls in TensorFloat-32 | float32 | float32 |
| ``bf16`` | bfloat16 | bfloat16 | bfloat16, no master weights |
| ``bf16-mixed`` | bfloat16 | float32 | float32 master weights and moments |
| ``fp16-mixed`` | float16 | float32 | float32 master weights and moments |
| ``fp8-mixed`` | bfloat16, linear layers in float8 | float32 | float32 master weights and moments |

``in_precision`` rewrites the graph, so that everything that reads a graph follows: search, memory, step time, executor.
Half precision is that of Megatron-LM and of FSDP2's ``MixedPrecisionPolicy(param_dtype, reduce_dtype=float32)``, with
the ops of torch's autocast that need the range or the sums of float32 in float32: losses, softmax, powers, sums.
Normalisations, attention and convolutions take half precision; their kernels keep statistics in float32. Casts that the
captured graph has stay. Values without a gradient, such as rotary tables and masks, are computed as captured and then
take the dtype of what they meet. ``fp8-mixed`` is ``bf16-mixed`` whose parameters say that linear layers multiply by
them in float8 (``costmodel.float8``); the executor refuses it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from autosbp.errors import InputError, UnsupportedError
from autosbp.graph.dtype_cast import cast_constant, cast_floats, clamped
from autosbp.graph.ir import (
    FLOAT8,
    FLOATS,
    Arg,
    Constant,
    DType,
    LogicalGraph,
    Node,
    Parameter,
    ParameterMeta,
    Ref,
    TensorMeta,
)
from autosbp.graph.symbolic_dims import Dim

AUTO, TF32, FP8_MIXED = "auto", "tf32", "fp8-mixed"
FULL = "float32"


@dataclass(frozen=True, slots=True)
class Precision:
    """Dtypes of parameters (and what is computed from them), gradients, and the optimizer.

    ``products`` is that of linear layers; "" for the parameters'.
    """

    parameters: str
    gradients: str
    optimizer: str
    products: str = ""

    def parameter_meta(self, shape: tuple[Dim, ...]) -> TensorMeta:
        """Meta of a trained parameter."""
        if self.parameters == FULL:
            return TensorMeta(shape, FULL)
        return ParameterMeta(shape, self.parameters, self.gradients, self.optimizer, self.products)


PRECISIONS: Mapping[str, Precision] = {
    "fp32": Precision(FULL, FULL, FULL),
    TF32: Precision(FULL, FULL, FULL),
    "bf16": Precision("bfloat16", "bfloat16", "bfloat16"),
    "bf16-mixed": Precision("bfloat16", FULL, FULL),
    "fp16-mixed": Precision("float16", FULL, FULL),
    FP8_MIXED: Precision("bfloat16", FULL, FULL, FLOAT8),
}
FULL_PRECISION_OPS = frozenset(
    f"aten.{name}"
    for name in (
        "acos.default", "asin.default", "binary_cross_entropy.default", "binary_cross_entropy_with_logits.default",
        "cdist.default", "cosh.default", "cross_entropy_loss.default", "cumprod.default", "cumsum.default",
        "dist.default", "erfinv.default", "exp.default", "expm1.default", "hinge_embedding_loss.default",
        "huber_loss.default", "kl_div.default", "l1_loss.default", "linalg_vector_norm.default", "log.default",
        "log10.default", "log1p.default", "log2.default", "log_softmax.int", "logsumexp.default", "mean.default",
        "mean.dim", "mse_loss.default", "nll_loss_nd.default", "norm.Scalar", "norm.ScalarOpt_dim",
        "pow.Scalar", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "prod.default", "prod.dim_int", "reciprocal.default",
        "rsqrt.default", "sinh.default", "smooth_l1_loss.default", "soft_margin_loss.default", "softmax.int",
        "softplus.default", "std.correction", "sum.default", "sum.dim_IntList", "tan.default", "var.correction",
    )
)  # fmt: skip
"""Ops in float32: the float32 list of torch's autocast, less normalisations, with means and variances."""
HALF_PRECISION_OPS = frozenset(
    f"aten.{name}"
    for name in (
        "addbmm.default", "addmm.default", "addmv.default", "addr.default", "baddbmm.default", "bilinear.default",
        "bmm.default", "conv1d.default", "conv1d.padding", "conv2d.default", "conv2d.padding", "conv3d.default",
        "conv3d.padding", "conv_transpose1d.default", "conv_transpose2d.input", "conv_transpose3d.input",
        "einsum.default", "linear.default", "matmul.default", "mm.default", "mv.default",
        "scaled_dot_product_attention.default", "batch_norm.default", "group_norm.default", "instance_norm.default",
        "layer_norm.default", "rms_norm.default",
    )
)  # fmt: skip
"""Ops that take the parameters' dtype: products, and normalisations, whose kernels keep statistics in float32."""
_PRECISION, _CAPTURED = "precision", "captured_graph"


def in_precision(graph: LogicalGraph, precision: str | None) -> LogicalGraph:
    """The graph in a precision of ``PRECISIONS``; None leaves it as captured.

    The result is cached with ``graph``; a graph that is in the precision already is returned as it is.

    Raises:
        InputError: ``precision``, for a graph that is in another one, or that multiplies in float8 in another one.
    """
    done = graph.provenance.get(_PRECISION)
    if precision is None or done == precision:
        if precision != FP8_MIXED and any(_multiplies_in_float8(leaf.meta) for leaf in graph.parameters):
            raise InputError("precision", precision, f"expected {FP8_MIXED}: parameters have product_dtype {FLOAT8}")
        return graph
    if done is not None:
        raise InputError("precision", precision, f"the graph is in {done} already")
    known: dict[str, LogicalGraph] = graph.cache.setdefault("precisions", {})
    if precision not in known:
        known[precision] = _cast(graph, precision)
    return known[precision]


def require_executor(precision: str | None) -> None:
    """Raise ``UnsupportedError`` if the executor does not compute in a precision."""
    if precision == FP8_MIXED:
        raise UnsupportedError(
            f"the executor does not train in {FP8_MIXED}: export the plan to torchtitan or Megatron, or plan in bf16-mixed"
        )


def captured_hash(graph: LogicalGraph) -> str:
    """Hash of the graph as captured, before ``in_precision``."""
    return graph.provenance.get(_CAPTURED, graph.graph_hash)


def planned_graph(graph: LogicalGraph, plan: Mapping[str, Any], field: str = "graph") -> LogicalGraph:
    """The graph in the precision of a plan document; ``graph`` is as captured, or in that precision already.

    Raises:
        InputError: ``field``, for another graph than the plan's.
    """
    wanted, found = plan["provenance"].get("graph_hash"), captured_hash(graph)
    if found != wanted:
        raise InputError(field, found, f"expected the plan's graph {wanted}")
    options = plan.get("options", {})
    if not isinstance(options, Mapping):
        raise InputError("plan.options", options, "expected an object")
    return in_precision(graph, options.get("precision"))


def _cast(graph: LogicalGraph, precision: str) -> LogicalGraph:
    dtypes = PRECISIONS[precision]
    widths = Counter(leaf.meta.dtype for leaf in graph.parameters if leaf.meta.is_float)
    captured = max(sorted(widths), key=lambda dtype: widths[dtype], default=FULL)
    if captured == FULL and dtypes.parameters != FULL:
        found = _HalfPrecision(graph, dtypes.parameters).run()
    elif captured != dtypes.parameters:
        found = _without_no_ops(cast_floats(graph, captured, dtypes.parameters))
    else:
        found = graph
    return replace(
        found,
        parameters=tuple(_training_dtypes(leaf, dtypes) for leaf in found.parameters),
        provenance={**graph.provenance, _PRECISION: precision, _CAPTURED: graph.graph_hash},
    )


def _training_dtypes(leaf: Parameter, dtypes: Precision) -> Parameter:
    if leaf.meta.dtype != dtypes.parameters:
        return replace(leaf, meta=TensorMeta(leaf.meta.shape, leaf.meta.dtype))
    return replace(leaf, meta=dtypes.parameter_meta(leaf.meta.shape))


def _multiplies_in_float8(meta: TensorMeta) -> bool:
    return isinstance(meta, ParameterMeta) and meta.product_dtype == FLOAT8


def _without_no_ops(graph: LogicalGraph) -> LogicalGraph:
    """The graph without casts to the dtype that a value has."""
    same: dict[Ref, Ref] = {}
    nodes = []
    for node in graph.nodes:
        made = node.map_args(lambda arg: same.get(arg, arg) if isinstance(arg, Ref) else arg)
        if node.op == "aten.to.dtype" and graph.meta(next(node.refs())).dtype == node.outputs[0].dtype:
            same[Ref(node.name)] = next(made.refs())
        else:
            nodes.append(made)
    return replace(graph, nodes=tuple(nodes), loss=same.get(graph.loss, graph.loss))


class _HalfPrecision:
    """Rewrite of a float32 graph whose parameters become ``half``."""

    def __init__(self, graph: LogicalGraph, half: str) -> None:
        self.graph, self.half = graph, half
        self.taken = {*(leaf.name for leaf in graph.leaves), *(node.name for node in graph.nodes)}
        self.parameters = {leaf.name for leaf in graph.parameters if leaf.meta.dtype == FULL}
        self.metas: dict[Ref, TensorMeta] = {Ref(leaf.name): leaf.meta for leaf in graph.leaves}
        self.constants = {leaf.name: leaf for leaf in graph.constants}
        self.copies: list[Constant] = []
        self.nodes: list[Node] = []
        self.casts: dict[tuple[Ref, str], Ref] = {}

    def run(self) -> LogicalGraph:
        """The rewritten graph; its loss stays float32."""
        for name in self.parameters:
            self.metas[Ref(name)] = TensorMeta(self.metas[Ref(name)].shape, self.half)
        for node in self.graph.nodes:
            self._add(node)
        loss = self._as(self.graph.loss, self.graph.meta(self.graph.loss).dtype)
        parameters = tuple(replace(leaf, meta=self.metas[Ref(leaf.name)]) for leaf in self.graph.parameters)
        used = {ref.name for node in self.nodes for ref in node.refs()}
        constants = tuple(leaf for leaf in (*self.graph.constants, *self.copies) if leaf.name in used)
        return replace(self.graph, parameters=parameters, constants=constants, nodes=tuple(self.nodes), loss=loss)

    def _add(self, node: Node) -> None:
        floats = [ref for ref in node.refs() if self.metas[ref].dtype in (FULL, self.half)]
        explicit = any(isinstance(arg, DType) and arg.name in FLOATS for arg in _leaves(node))
        dtype = FULL if explicit else self._dtype(node, floats)

        def arg(value: Arg) -> Arg:
            if isinstance(value, Ref) and value in floats and not explicit:
                return self._as(value, dtype)
            return clamped(value, dtype)

        outputs = tuple(TensorMeta(meta.shape, dtype) if meta.dtype == FULL else meta for meta in node.outputs)
        self.nodes.append(replace(node.map_args(arg), outputs=outputs))
        self.metas.update({Ref(node.name, index): meta for index, meta in enumerate(outputs)})

    def _dtype(self, node: Node, floats: list[Ref]) -> str:
        """Dtype in which an op computes; its float operands are cast to it."""
        if node.op in FULL_PRECISION_OPS or node.op in self.graph.functions:  # whose bodies may name dtypes
            return FULL
        if node.op in HALF_PRECISION_OPS or any(ref.name in self.parameters for ref in floats):
            return self.half
        strong = [ref for ref in floats if ref.name in self.graph.differentiable] or floats
        halves = all(self.metas[ref].dtype == self.half for ref in strong)
        return self.half if strong and halves else FULL

    def _as(self, ref: Ref, dtype: str) -> Ref:
        """A value in another dtype: a cast, shared by all its readers, or a constant's rounded copy."""
        meta = self.metas[ref]
        if meta.dtype == dtype:
            return ref
        if (ref, dtype) not in self.casts:
            name = self._name(f"{ref.name}_{ref.index}_{dtype}" if ref.index else f"{ref.name}_{dtype}")
            cast = TensorMeta(meta.shape, dtype)
            if ref.name in self.constants:
                self.copies.append(cast_constant(self.constants[ref.name], dtype, name))
            else:
                self.nodes.append(Node(name, "aten.to.dtype", (ref, DType(dtype)), {}, (cast,)))
            self.casts[ref, dtype] = Ref(name)
            self.metas[Ref(name)] = cast
        return self.casts[ref, dtype]

    def _name(self, wanted: str) -> str:
        name = wanted
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        return name


def _leaves(node: Node) -> list[Arg]:
    """All leaves of a node's arguments."""
    found: list[Arg] = []
    node.map_args(found.append)
    return found
