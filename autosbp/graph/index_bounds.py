"""Bounds of integer inputs used as indices: an index into a table of n rows is below n."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Literal

from autosbp.errors import GraphError
from autosbp.graph.argument_checks import MALFORMED_ERRORS, malformed_arguments_error
from autosbp.graph.constants import decode_bytes
from autosbp.graph.ir import Arg, LogicalGraph, Node, Ref, TensorMeta

_DATA_MOVEMENT_OPS = frozenset(
    f"aten.{name}" for name in (
        "reshape.default", "permute.default", "expand.default", "slice.Tensor", "to.dtype", "cat.default",
        "constant_pad_nd.default", "masked_fill.Scalar", "masked_fill.Tensor", "slice_scatter.default",
        "select_scatter.default", "flip.default", "roll.default", "detach.default",
    )
)  # fmt: skip
"""Ops whose output holds elements of their float and integer operands, unchanged."""
_GUARDS = frozenset(
    f"aten.{name}"
    for name in ("clamp.default", "where.ScalarSelf", "where.ScalarOther", "mul.Tensor", "remainder.Scalar")
)
"""Ops that may keep some values from an index, such as those of padding, so that a larger input is no mistake."""
_COMPARISONS = frozenset(f"aten.{name}.{kind}" for name in ("eq", "ne") for kind in ("Scalar", "Tensor"))
_INTEGERS: Mapping[str, Literal["q", "i", "h", "b", "B"]] = {
    "int64": "q",
    "int32": "i",
    "int16": "h",
    "int8": "b",
    "uint8": "B",
}
"""Integer dtypes, with their ``memoryview`` format characters."""
DEFAULT_HIGH = 2
"""Exclusive bound of integer inputs without ``high``: they are 0 or 1."""
_ADDS: Mapping[str, int] = {"aten.add.Tensor": 1, "aten.add.Scalar": 1, "aten.sub.Tensor": -1, "aten.sub.Scalar": -1}
"""Ops that shift integers by a number, with its sign."""


def infer_input_bounds(graph: LogicalGraph, seen: Mapping[str, int] | None = None) -> LogicalGraph:
    """``graph`` with ``high`` of each integer input reduced to the bound that its uses allow.

    Inputs without such a use get the range of the values that they are compared with, or of ``seen``, the largest value
    of each input's example, so that random batches draw from all classes.
    """
    limits, guarded, compared = _input_limits(graph), _input_limits(graph, guarded=True), _compared_values(graph)
    inputs = []
    for leaf in graph.inputs:
        found = limits[leaf.name][0] if leaf.name in limits else None
        if found is None and leaf.high is None and leaf.name in guarded:
            found = guarded[leaf.name][0]
        if found is not None and found >= 1 and (leaf.high is None or found < leaf.high):
            leaf = replace(leaf, high=found)
        elif found is None and leaf.high is None and leaf.meta.dtype in _INTEGERS:
            largest = max(compared.get(leaf.name, 0), (seen or {}).get(leaf.name, 0))
            leaf = replace(leaf, high=largest + 1) if largest >= DEFAULT_HIGH else leaf
        inputs.append(leaf)
    return replace(graph, inputs=tuple(inputs))


def check_bounds(graph: LogicalGraph) -> None:
    """Raise ``GraphError`` if an integer input (``high``) or a constant (values) exceeds the bound of its uses."""
    limits = _input_limits(graph)
    for index, leaf in enumerate(graph.inputs):
        limit, user = limits.get(leaf.name, (None, ""))
        if limit is not None and (leaf.high or DEFAULT_HIGH) > limit:
            raise GraphError(
                f"inputs[{index}].high", leaf.high, (f"expected at most {limit}, the size that {user} indexes")
            )
    constants = {constant.name: constant for constant in graph.constants}
    for node in graph.nodes:
        for ref, size in _index_limits(graph, node):
            constant = constants.get(ref.name)
            if constant is not None and constant.meta.dtype in _INTEGERS and constant.meta.num_bytes:
                data = memoryview(decode_bytes(constant.data, constant.meta.num_bytes))
                values: memoryview[int] = data.cast(_INTEGERS[constant.meta.dtype])
                for value in (min(values), max(values)):
                    if not -size <= value < size:
                        raise GraphError(
                            constant.name, value, (f"expected {-size} to {size - 1}, as index of {node.name}")
                        )


_Offsets = Mapping[str, int]
"""Inputs whose elements, plus an offset, are among the values of a tensor."""


def _input_limits(graph: LogicalGraph, *, guarded: bool = False) -> dict[str, tuple[int, str]]:
    """For integer inputs used as indices: the least exclusive bound, and the node that imposes it.

    With ``guarded``, also through ops that may keep larger values from the index.
    """
    limits: dict[str, tuple[int, str]] = {}
    for node, offsets in _with_offsets(graph, guarded=guarded):
        for ref, limit in _index_limits(graph, node):
            for name, offset in offsets.get(ref, {}).items():
                if name not in limits or limit - offset < limits[name][0]:
                    limits[name] = limit - offset, node.name
    return limits


def _compared_values(graph: LogicalGraph) -> dict[str, int]:
    """For integer inputs that are compared with numbers: the largest of these."""
    ranges = {Ref(node.name): node.args[-1] for node in graph.nodes if node.op == "aten.arange.default"}
    for constant in graph.constants:
        if constant.meta.dtype in _INTEGERS and constant.meta.num_bytes:
            data = memoryview(decode_bytes(constant.data, constant.meta.num_bytes))
            ranges[Ref(constant.name)] = max(data.cast(_INTEGERS[constant.meta.dtype])) + 1
    found: dict[str, int] = {}
    for node, offsets in _with_offsets(graph, guarded=True):
        if node.op not in _COMPARISONS:
            continue
        numbers = [
            ranges.get(arg, 0) if isinstance(arg, Ref) else arg + 1 if type(arg) is int else 0 for arg in node.args
        ]
        largest = max((each - 1 for each in numbers if type(each) is int), default=0)
        for ref in node.refs():
            for name, offset in offsets.get(ref, {}).items():
                found[name] = max(found.get(name, 0), largest - offset)
    return found


def _with_offsets(graph: LogicalGraph, *, guarded: bool) -> Iterator[tuple[Node, Mapping[Ref, _Offsets]]]:
    """Nodes in order, each with what is known of the values that it may read."""
    offsets: dict[Ref, dict[str, int]] = {
        Ref(leaf.name): {leaf.name: 0} for leaf in graph.inputs if leaf.meta.dtype in _INTEGERS
    }
    for node in graph.nodes:
        yield node, offsets
        if node.op in _GUARDS and not (guarded and _is_guard(graph, node)):
            continue
        for name, offset in _propagated_offsets(node, offsets).items():
            offsets.setdefault(Ref(node.name), {})[name] = offset


def _is_guard(graph: LogicalGraph, node: Node) -> bool:
    """Whether a product is with a mask, and a clamp from below."""
    if node.op == "aten.mul.Tensor":
        return any(graph.meta(ref).dtype == "bool" for ref in node.refs())
    return node.op != "aten.clamp.default" or all(arg is None for arg in node.args[2:])


def _propagated_offsets(node: Node, offsets: Mapping[Ref, _Offsets]) -> dict[str, int]:
    """Inputs whose elements, plus an offset, are among the node's outputs, each with its largest offset."""
    added = 0
    if node.op in _ADDS:
        numbers = [arg for arg in node.args[:2] if type(arg) is int]
        if len(numbers) != 1 or _ADDS[node.op] < 0 and type(node.args[1]) is not int:
            return {}
        added = _ADDS[node.op] * numbers[0]
    elif node.op.startswith("aten.where."):
        node = replace(node, args=node.args[1:])
    elif node.op not in _DATA_MOVEMENT_OPS and node.op not in _GUARDS:
        return {}
    found: dict[str, int] = {}
    for ref in node.refs():
        for name, offset in offsets.get(ref, {}).items():
            found[name] = max(found.get(name, offset + added), offset + added)
    return found


def _index_limits(graph: LogicalGraph, node: Node) -> Iterator[tuple[Ref, int]]:
    """Operands that index a dim, each with the dim's size; and binary labels, with 2."""
    try:
        picks = list(_INDEXING_OPS[node.op](graph, node)) if node.op in _INDEXING_OPS else []
    except MALFORMED_ERRORS as error:
        raise malformed_arguments_error(node, error) from None
    for ref, size in picks:
        if isinstance(ref, Ref) and isinstance(size, int):
            yield ref, size


_IndexedDims = Iterator[tuple[Arg, Arg]]


def _shape(graph: LogicalGraph, ref: Ref) -> tuple[int | str, ...]:
    meta: TensorMeta = graph.meta(ref)
    return meta.shape


def _embedding(graph: LogicalGraph, node: Node) -> _IndexedDims:
    yield node.args[1], _shape(graph, node.args[0])[0]


def _indexed_dim(graph: LogicalGraph, node: Node) -> _IndexedDims:
    shape = _shape(graph, node.args[0])
    yield node.args[2], shape[node.args[1]] if shape else None


def _index(graph: LogicalGraph, node: Node) -> _IndexedDims:
    yield from zip(node.args[1], _shape(graph, node.args[0]), strict=False)


def _one_hot(_graph: LogicalGraph, node: Node) -> _IndexedDims:
    yield node.args[0], node.args[1] if len(node.args) > 1 else None


def _classes(graph: LogicalGraph, node: Node) -> _IndexedDims:
    shape = _shape(graph, node.args[0])
    yield node.args[1], shape[min(1, len(shape) - 1)] if shape else None


def _binary(_graph: LogicalGraph, node: Node) -> _IndexedDims:
    yield node.args[1], 2


_INDEXING_OPS: Mapping[str, Callable[[LogicalGraph, Node], _IndexedDims]] = {
    "aten.embedding.default": _embedding,
    "aten.gather.default": _indexed_dim,
    "aten.index_select.default": _indexed_dim,
    "aten.scatter.src": _indexed_dim,
    "aten.scatter.value": _indexed_dim,
    "aten.scatter_add.default": _indexed_dim,
    "aten.index_add.default": _indexed_dim,
    "aten.index.Tensor": _index,
    "aten.index_put.default": _index,
    "aten.one_hot.default": _one_hot,
    **{
        f"aten.{name}": _indexed_dim
        for name in (
            "index_fill.int_Scalar",
            "index_fill.int_Tensor",
            "index_reduce.default",
            "scatter.reduce",
            "scatter.value_reduce",
            "scatter_reduce.two",
        )
    },
    **{
        f"aten.{name}.default": _classes
        for name in ("cross_entropy_loss", "multi_margin_loss", "nll_loss", "nll_loss2d", "nll_loss_nd")
    },
    "aten.binary_cross_entropy.default": _binary,
    "aten.binary_cross_entropy_with_logits.default": _binary,
}
