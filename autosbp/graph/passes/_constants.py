"""Constant folding: values that depend on shapes only, such as causal masks and position ids, become data.

The constant part runs once at two batch sizes. A value that is the same along the batch is stored with size 1 there; a
lower-triangular boolean mask becomes ``is_causal``. A large value that does not compress stays a computation.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from autosbp.graph.allowed_ops import ALLOWED_OPS
from autosbp.graph.ir import Constant, LogicalGraph, Node, Ref, Sym
from autosbp.graph.passes._graph_edits import consumers, rebuild, substitute
from autosbp.graph.to_fx import constant_tensor, is_random, make_constant, resolve_op, to_fx_arg

_ATTENTION = "aten.scaled_dot_product_attention.default"
MAX_FOLDED_TEXT = 16_384
MAX_EVALUATED_ELEMENTS = 2**28


def fold_constants(graph: LogicalGraph) -> LogicalGraph:
    """Fold every constant value that a non-constant node reads."""
    frontier = _frontier(graph)
    if not frontier:
        return graph
    small = evaluate_constants(graph, 2, frontier)
    large = evaluate_constants(graph, 3, frontier)
    graph = _causal_masks(graph, {name: value for name, value in small.items() if name in large})
    frontier = _frontier(graph)
    constants: list[Constant] = []
    nodes: list[Node] = []
    for node in graph.nodes:
        constant = None
        if node.name in frontier and node.name in small and node.name in large:
            constant = _fold_value(node, small[node.name], large[node.name])
        if constant is None:
            nodes.append(node)
            continue
        constants.append(constant)
        if constant.name != node.name:
            sizes = tuple(dim if isinstance(dim, int) else Sym(dim) for dim in node.outputs[0].shape)
            nodes.append(Node(node.name, "aten.expand.default", (Ref(constant.name), sizes), {}, node.outputs))
    return replace(graph, nodes=tuple(nodes), constants=(*graph.constants, *constants))


def _fold_value(node: Node, one: torch.Tensor, two: torch.Tensor) -> Constant | None:
    """Constant for a node's values ``one`` and ``two`` at batch sizes 2 and 3.

    It holds the whole value, or one row (called ``NAME.row``) of a value that is the same along the batch; None if the
    value depends on the batch otherwise, or does not compress.
    """
    if one.shape == two.shape:
        return _store(node.name, one) if _are_same(one, two) else None
    if one.shape[1:] == two.shape[1:] and _are_same(two, one[:1]) and _are_same(one, one[:1]):
        return _store(f"{node.name}.row", one[:1].contiguous())
    return None


def _are_same(one: torch.Tensor, two: torch.Tensor) -> bool:
    """Whether two values, of which the second may be broadcast, are the same; NaN equals NaN."""
    same = one == two
    return bool((same | ((one != one) & (two != two)) if one.is_floating_point() else same).all())


def share_constants(graph: LogicalGraph) -> LogicalGraph:
    """Merge constant nodes with the same op and arguments, such as each layer's view of the rotary angles."""
    first: dict[object, Ref] = {}
    table: dict[Ref, Ref] = {}
    nodes = []
    fixed = deterministic_constant_names(graph)
    for node in graph.nodes:
        if node.name in fixed and len(node.outputs) == 1:
            changed = node.map_args(lambda arg: substitute(arg, table))
            key = (node.op, repr(changed.args), repr(changed.kwargs))
            if key in first:
                table[Ref(node.name)] = first[key]
                continue
            first[key] = Ref(node.name)
        nodes.append(node)
    return rebuild(graph, nodes, table)


def deterministic_constant_names(graph: LogicalGraph) -> frozenset[str]:
    """Names of constant values that are the same in every run: no random op takes part in them."""
    known = {constant.name for constant in graph.constants}
    for node in graph.nodes:
        if (
            node.name in graph.constant_names
            and all(ref.name in known for ref in node.refs())
            and (node.op in ALLOWED_OPS or not node.op.startswith("aten."))  # others are refused once passes have run
            and not is_random(node.op)
        ):
            known.add(node.name)
    return frozenset(known)


def _frontier(graph: LogicalGraph) -> set[str]:
    """Constant nodes that a non-constant node reads."""
    fixed = deterministic_constant_names(graph)
    computed = {node.name for node in graph.nodes if node.name in fixed}
    return {ref.name for node in graph.nodes if node.name not in fixed for ref in node.refs() if ref.name in computed}


def evaluate_constants(graph: LogicalGraph, batch: int, frontier: set[str]) -> dict[str, torch.Tensor]:
    """Values of the constant nodes ``frontier`` at this batch size, except those too large to compute here."""
    bound = graph.bind(**dict.fromkeys(graph.symbols, batch))
    values: dict[str, Any] = {constant.name: constant_tensor(constant) for constant in graph.constants}
    fixed = deterministic_constant_names(graph)
    for node in bound.nodes:
        if node.name not in fixed or any(ref.name not in values for ref in node.refs()):
            continue
        if sum(torch.Size(meta.sizes).numel() for meta in node.outputs) > MAX_EVALUATED_ELEMENTS:
            continue
        args = [to_fx_arg(arg, values) for arg in node.args]
        kwargs = {key: to_fx_arg(arg, values) for key, arg in node.kwargs.items()}
        values[node.name] = resolve_op(node.op)(*args, **kwargs)
    return {name: values[name] for name in frontier if name in values}


def _store(name: str, tensor: torch.Tensor) -> Constant | None:
    constant = make_constant(name, tensor)
    return constant if len(constant.data) <= MAX_FOLDED_TEXT else None


def _causal_masks(graph: LogicalGraph, values: dict[str, torch.Tensor]) -> LogicalGraph:
    """Replace ``sdpa(q, k, v, mask)`` with a lower-triangular boolean mask by ``sdpa(q, k, v, is_causal=True)``."""
    causal = {name for name, value in values.items() if _is_causal(value)}
    readers = consumers(graph)
    changed: dict[str, Node] = {}
    for name in causal:
        for node in readers.get(Ref(name), ()):
            if (
                node.op == _ATTENTION
                and len(node.args) > 3
                and node.args[3] == Ref(name)
                and _mask_is_square(graph, node)
            ):
                args = [*node.args, *(None, None, None, None, 0.0, False)[len(node.args) :]]
                args[3], args[5] = None, True
                changed[node.name] = replace(node, args=tuple(args))
    return replace(graph, nodes=tuple(changed.get(node.name, node) for node in graph.nodes))


def _mask_is_square(graph: LogicalGraph, node: Node) -> bool:
    """Whether queries and keys are as many as the mask's rows and columns, so that the mask is not broadcast."""
    query, key, mask = (graph.meta(ref).shape[-2:] for ref in (node.args[0], node.args[1], node.args[3]))
    return query[0] == key[0] == mask[0] == mask[1]


def _is_causal(mask: torch.Tensor) -> bool:
    if mask.dtype != torch.bool or mask.dim() < 2 or mask.shape[-1] != mask.shape[-2]:
        return False
    lower = torch.ones(mask.shape[-2:], dtype=torch.bool).tril()
    return bool((mask == lower).all())
