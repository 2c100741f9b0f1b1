"""The logical graph: the single-device training forward pass, as plain data.

Nodes are in topological order; every argument is a JSON-like value, a ``Ref`` to an earlier value, a ``Sym`` (an int
that depends on symbolic dims) or a ``DType``. A value has the name of its node; a ``Ref`` to a node with several
outputs has an index. Nothing here needs torch.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from math import prod
from typing import Any

from autosbp.graph.custom_functions import CustomFunction
from autosbp.graph.discovered_rules import DiscoveredRule, rules_to_dict
from autosbp.graph.document_folding import fold_nodes
from autosbp.graph.symbolic_dims import Dim, evaluate
from autosbp.utils.json_io import FULL_DIGEST_DIGITS, HASH_DIGITS, digest, tagged_number

SCHEMA = "autosbp.graph/1"
DTYPE_BYTES: Mapping[str, int] = {
    "float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1,
    "bool": 1,
}  # fmt: skip
DETACH_OPS = frozenset(("aten.detach.default",))
FLOATS = frozenset(("float64", "float32", "bfloat16", "float16"))
FLOAT8 = "float8"
"""Dtype of products with scaled operands, not of tensors of a graph (``ParameterMeta.product_dtype``)."""


@lru_cache(maxsize=4096)
def _sizes(shape: tuple[Dim, ...]) -> tuple[int, ...]:
    sizes = tuple(dim for dim in shape if isinstance(dim, int))
    if len(sizes) != len(shape):
        raise TypeError(f"the shape {shape} is symbolic; bind the graph first")
    return sizes


@lru_cache(maxsize=4096)
def _elements(shape: tuple[Dim, ...]) -> int:
    return prod(_sizes(shape))


@dataclass(frozen=True, slots=True)
class TensorMeta:
    """Shape (ints or dim expressions) and dtype name."""

    shape: tuple[Dim, ...]
    dtype: str

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape as ints; raise ``TypeError`` for a symbolic dim (bind the graph first)."""
        return _sizes(self.shape)

    @property
    def num_bytes(self) -> int:
        return _elements(self.shape) * DTYPE_BYTES[self.dtype]

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOATS

    @property
    def gradient_width(self) -> int:
        """Bytes per element in which a parameter's gradient is accumulated and reduced: those of its dtype."""
        return DTYPE_BYTES[self.dtype]

    @property
    def optimizer_width(self) -> int:
        """Bytes per element in which the optimizer updates a parameter: at least those of float32."""
        return max(DTYPE_BYTES["float32"], DTYPE_BYTES[self.dtype])

    @property
    def gradient_bytes(self) -> int:
        return _elements(self.shape) * self.gradient_width


@dataclass(frozen=True, slots=True)
class ParameterMeta(TensorMeta):
    """Meta of a parameter whose gradient or optimizer has a dtype other than the default.

    By default a gradient has the parameter's dtype, and the optimizer updates a float32 copy of half-precision
    parameters. ``product_dtype`` is that in which linear layers multiply by it (``costmodel.float8``); "" for its own.
    """

    gradient_dtype: str
    optimizer_dtype: str
    product_dtype: str = ""

    @property
    def gradient_width(self) -> int:
        return DTYPE_BYTES[self.gradient_dtype]

    @property
    def optimizer_width(self) -> int:
        return DTYPE_BYTES[self.optimizer_dtype]


@dataclass(frozen=True, slots=True)
class Ref:
    """A value: output ``index`` of the node, parameter, input or constant called ``name``."""

    name: str
    index: int = 0


@dataclass(frozen=True, slots=True)
class Sym:
    """An integer argument that depends on symbolic dims."""

    expr: str


@dataclass(frozen=True, slots=True)
class DType:
    """A dtype argument."""

    name: str


Arg = Any  # None | bool | int | float | str | Ref | Sym | DType | tuple[Arg, ...]


@dataclass(frozen=True, slots=True)
class Node:
    """One op; ``op`` is ``NAMESPACE.NAME.OVERLOAD``.

    ``rule`` names its rule in the graph's ``rules``, for ops that the rule table lacks.
    """

    name: str
    op: str
    args: tuple[Arg, ...]
    kwargs: Mapping[str, Arg]
    outputs: tuple[TensorMeta, ...]
    rule: str = ""
    _reads: tuple[Ref, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_reads", (*_refs(self.args), *_refs(tuple(self.kwargs.values()))))

    def refs(self) -> Iterator[Ref]:
        """Every tensor argument, in order, with repeats."""
        return iter(self._reads)

    def map_args(self, change: Callable[[Arg], Arg]) -> Node:
        """A copy with ``change`` applied to every leaf of the arguments."""
        return replace(
            self,
            args=tuple(map_arg(arg, change) for arg in self.args),
            kwargs={key: map_arg(arg, change) for key, arg in self.kwargs.items()},
        )

    def kind(self, source: Callable[[Ref], Hashable]) -> Hashable:
        """Hashable key of the op without its name, equal for equal ops; ``source`` replaces every tensor argument."""

        def leaf(arg: Arg) -> Arg:
            return source(arg) if isinstance(arg, Ref) else (type(arg).__name__, arg)

        kwargs = tuple((key, map_arg(self.kwargs[key], leaf)) for key in sorted(self.kwargs))
        return self.op, self.rule, self.outputs, map_arg(self.args, leaf), kwargs


def _refs(arg: Arg) -> Iterator[Ref]:
    if isinstance(arg, Ref):
        yield arg
    elif isinstance(arg, tuple):
        for item in arg:
            yield from _refs(item)


def map_arg(arg: Arg, change: Callable[[Arg], Arg]) -> Arg:
    """``arg`` with ``change`` applied to every leaf."""
    if isinstance(arg, tuple):
        return tuple(map_arg(item, change) for item in arg)
    return change(arg)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A weight. One that is not ``trained`` (frozen) has no gradient.

    ``source`` is the checkpoint tensor that contains it; ``transforms`` lead from that tensor to this one, in order:
    ``("slice", dim, start, stop)``; ``("blocks", dim, count, start, stop)``, which takes that slice of each of the
    ``count`` equal blocks of the dim; and ``("t",)``.
    """

    name: str
    meta: TensorMeta
    source: str
    transforms: tuple[tuple[Any, ...], ...] = ()
    trained: bool = True


@dataclass(frozen=True, slots=True)
class Input:
    """A batch tensor. ``high`` is the exclusive bound of an integer input, for generating valid random batches."""

    name: str
    meta: TensorMeta
    high: int | None = None


@dataclass(frozen=True, slots=True)
class Constant:
    """A tensor known at capture; ``data`` is its bytes, row-major little-endian, compressed (``graph.serialize``)."""

    name: str
    meta: TensorMeta
    data: str


@dataclass(frozen=True)
class LogicalGraph:
    """A training forward pass; see the module's docstring.

    ``symbols`` maps each symbolic dim to its size at capture. ``rules`` holds sharding rules of ops that the rule table
    lacks, by the names that nodes refer to (``autosbp.graph.discovered_rules``). ``functions`` holds the ops with a backward
    of their own, by their names (``autosbp.graph.custom_functions``). The graph of a single call
    (``autosbp.graph.eager_calls``) has ``results`` instead of a loss. A pipeline chunk
    (``autosbp.graph.pipeline_chunks``) has ``results`` that the next chunk gets as its ``received``.
    """

    name: str
    symbols: Mapping[str, int]
    parameters: tuple[Parameter, ...]
    inputs: tuple[Input, ...]
    constants: tuple[Constant, ...]
    nodes: tuple[Node, ...]
    loss: Ref
    provenance: Mapping[str, str] = field(default_factory=dict)
    rules: Mapping[str, DiscoveredRule] = field(default_factory=dict)
    results: tuple[Ref, ...] = ()
    received_refs: tuple[Ref, ...] = ()
    functions: Mapping[str, CustomFunction] = field(default_factory=dict)

    @property
    def leaves(self) -> Iterator[Parameter | Input | Constant]:
        """Parameters, inputs and constants, in this order."""
        yield from self.parameters
        yield from self.inputs
        yield from self.constants

    @cached_property
    def cache(self) -> dict[Hashable, Any]:
        """Cache for other modules' results derived from this immutable graph, by their keys."""
        return {}

    @cached_property
    def metas(self) -> Mapping[str, tuple[TensorMeta, ...]]:
        """Metas of the outputs of every named value."""
        table: dict[str, tuple[TensorMeta, ...]] = {}
        for leaf in self.leaves:
            table[leaf.name] = (leaf.meta,)
        for node in self.nodes:
            table[node.name] = node.outputs
        return table

    def meta(self, ref: Ref) -> TensorMeta:
        return self.metas[ref.name][ref.index]

    @cached_property
    def positions(self) -> Mapping[str, int]:
        """The position of every node in the program."""
        return {node.name: at for at, node in enumerate(self.nodes)}

    @property
    def data(self) -> tuple[Input | Constant, ...]:
        """Tensors that every rank gets whole: the batch and the constants."""
        return (*self.inputs, *self.constants)

    @cached_property
    def high(self) -> int:
        """Exclusive bound of all integer inputs, for timing ops that index with them."""
        return max((leaf.high for leaf in self.inputs if leaf.high is not None), default=1)

    @cached_property
    def parameter_names(self) -> frozenset[str]:
        return frozenset(leaf.name for leaf in self.parameters)

    @cached_property
    def trained(self) -> tuple[Parameter, ...]:
        """The parameters that an optimizer updates: all but frozen ones."""
        return tuple(leaf for leaf in self.parameters if leaf.trained and leaf.meta.is_float)

    @cached_property
    def constant_names(self) -> frozenset[str]:
        """Values that depend on neither a parameter nor an input: every rank computes the same."""
        known = {constant.name for constant in self.constants}
        for node in self.nodes:
            if all(ref.name in known for ref in node.refs()):
                known.add(node.name)
        return frozenset(known)

    @cached_property
    def parameter_dependent(self) -> frozenset[str]:
        """Parameters and all values that depend on one: the search chooses their layouts.

        Other values are data, whole on every rank.
        """
        known = set(self.parameter_names)
        for node in self.nodes:
            if any(ref.name in known for ref in node.refs()):
                known.add(node.name)
        return frozenset(known)

    @cached_property
    def differentiable(self) -> frozenset[str]:
        """Values with a gradient: float values on a chain of float values from a trained parameter to the loss."""
        known = {leaf.name for leaf in self.parameters if leaf.trained and leaf.meta.is_float}
        for node in self.nodes:
            flows = any(ref.name in known and self.meta(ref).is_float for ref in node.refs())
            if flows and node.op not in DETACH_OPS and any(meta.is_float for meta in node.outputs):
                known.add(node.name)
        reached = {self.loss.name, *(ref.name for ref in self.results)}
        for node in reversed(self.nodes):
            if node.name in reached and node.name in known:
                reached.update(ref.name for ref in node.refs() if self.meta(ref).is_float)
        return frozenset(known & reached)

    def has_gradient(self, ref: Ref) -> bool:
        """Whether a gradient flows into this output of a value."""
        return ref.name in self.differentiable and self.meta(ref).is_float

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 of everything but the provenance."""
        return digest({**self.to_dict(fold=False), "provenance": {}}, FULL_DIGEST_DIGITS)

    @property
    def graph_hash(self) -> str:
        return self.content_hash[:HASH_DIGITS]

    @cached_property
    def _symbolic(self) -> frozenset[str]:
        """Names of nodes whose arguments depend on symbols."""

        def depends(arg: Arg) -> bool:
            return any(map(depends, arg)) if isinstance(arg, tuple) else isinstance(arg, Sym)

        return frozenset(node.name for node in self.nodes if depends((*node.args, *node.kwargs.values())))

    @cached_property
    def bound_at_capture(self) -> LogicalGraph:
        """The graph bound to its sizes at capture; itself if it has no symbols."""
        return self.bind(**self.symbols) if self.symbols else self

    def bind(self, **values: int) -> LogicalGraph:
        """The graph with every symbol replaced by a number; needs a value for each symbol."""

        def fix(arg: Arg) -> Arg:
            return evaluate(arg.expr, values) if isinstance(arg, Sym) else arg

        fixed: dict[TensorMeta, TensorMeta] = {}

        def fix_meta(meta: TensorMeta) -> TensorMeta:
            if meta not in fixed:
                fixed[meta] = TensorMeta(tuple(evaluate(dim, values) for dim in meta.shape), meta.dtype)
            return fixed[meta]

        def fix_node(node: Node) -> Node:
            args, kwargs = node.args, node.kwargs
            if node.name in self._symbolic:
                args = tuple(map_arg(arg, fix) for arg in args)
                kwargs = {key: map_arg(arg, fix) for key, arg in kwargs.items()}
            return Node(node.name, node.op, args, kwargs, tuple(map(fix_meta, node.outputs)), node.rule)

        return LogicalGraph(
            self.name,
            {},
            self.parameters,
            tuple(replace(leaf, meta=fix_meta(leaf.meta)) for leaf in self.inputs),
            self.constants,
            tuple(map(fix_node, self.nodes)),
            self.loss,
            self.provenance,
            self.rules,
            self.results,
            functions=self.functions,
        )

    def to_dict(self, fold: bool = True) -> dict[str, Any]:
        """The versioned JSON document (``autosbp/data/graph.schema.json``); with ``fold``, a run of repeated blocks is written
        once with its count."""
        nodes = [_encode_node(node) for node in self.nodes]
        return {
            "schema": SCHEMA,
            "name": self.name,
            "symbols": dict(self.symbols),
            "parameters": [
                {
                    "name": leaf.name,
                    **_encode_meta(leaf.meta),
                    **({} if leaf.source == leaf.name else {"source": leaf.source}),
                    **({"transforms": [list(step) for step in leaf.transforms]} if leaf.transforms else {}),
                    **({} if leaf.trained else {"trained": False}),
                }
                for leaf in self.parameters
            ],
            "inputs": [
                {"name": leaf.name, **_encode_meta(leaf.meta), **({} if leaf.high is None else {"high": leaf.high})}
                for leaf in self.inputs
            ],
            "constants": [{"name": leaf.name, **_encode_meta(leaf.meta), "data": leaf.data} for leaf in self.constants],
            **({"rules": rules_to_dict(self.rules)} if self.rules else {}),
            **({"functions": {name: each.document for name, each in self.functions.items()}} if self.functions else {}),
            "nodes": fold_nodes(nodes) if fold else nodes,
            "loss": _encode(self.loss),
            "provenance": dict(self.provenance),
        }

    def summary(self) -> dict[str, Any]:
        """Counts and sizes, for display and lists."""
        return {
            "name": self.name,
            "graph_hash": self.graph_hash,
            "num_nodes": len(self.nodes),
            "num_parameters": sum(prod(parameter.meta.sizes) for parameter in self.parameters),
            "parameter_bytes": sum(parameter.meta.num_bytes for parameter in self.parameters),
            "inputs": [
                {"name": leaf.name, "shape": list(leaf.meta.shape), "dtype": leaf.meta.dtype} for leaf in self.inputs
            ],
            "symbols": dict(self.symbols),
        }


def _encode_meta(meta: TensorMeta) -> dict[str, Any]:
    own = {"shape": list(meta.shape), "dtype": meta.dtype}
    if isinstance(meta, ParameterMeta):
        own |= {"gradient_dtype": meta.gradient_dtype, "optimizer_dtype": meta.optimizer_dtype}
        return own | ({"product_dtype": meta.product_dtype} if meta.product_dtype else {})
    return own


def _encode_node(node: Node) -> dict[str, Any]:
    document: dict[str, Any] = {"name": node.name, "op": node.op, "args": [_encode(arg) for arg in node.args]}
    if node.kwargs:
        document["kwargs"] = {key: _encode(arg) for key, arg in node.kwargs.items()}
    document["outputs"] = [_encode_meta(meta) for meta in node.outputs]
    if node.rule:
        document["rule"] = node.rule
    return document


def _encode(arg: Arg) -> Any:
    if isinstance(arg, Ref):
        return {"ref": arg.name, "out": arg.index} if arg.index else {"ref": arg.name}
    if isinstance(arg, Sym):
        return {"sym": arg.expr}
    if isinstance(arg, DType):
        return {"dtype": arg.name}
    if isinstance(arg, tuple):
        return [_encode(item) for item in arg]
    return tagged_number(arg) if isinstance(arg, float) else arg
