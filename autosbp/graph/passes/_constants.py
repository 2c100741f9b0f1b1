"""Constant folding: values that depend on shapes only, such as causal masks and position ids, become data.

The constant part is run once at two batch sizes. A value that is the same along the batch is stored with size 1 there;
a boolean mask that is lower triangular becomes ``is_causal``. What is large and does not compress stays as ops.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from autosbp.graph.ir import Constant, LogicalGraph, Node, Ref, Sym
from autosbp.graph.passes._edit import consumers

MAX_FOLDED_TEXT = 16_384
MAX_EVALUATED_ELEMENTS = 2**27


def fold_constants(graph: LogicalGraph) -> LogicalGraph:
    """Fold every constant value that something non-constant reads."""
    frontier = _frontier(graph)
    if not frontier:
        return graph
    small = _evaluate(graph, 2, frontier)
    large = _evaluate(graph, 3, frontier)
    graph = _causal_masks(graph, {name: value for name, value in small.items() if name in large})
    frontier = _frontier(graph)
    folded: dict[str, Constant] = {}
    expands: dict[str, Node] = {}
    for node in graph.nodes:
        if node.name not in frontier or node.name not in small or node.name not in large:
            continue
        one, two = small[node.name], large[node.name]
        if one.shape == two.shape and torch.equal(one, two):
            constant = _store(node.name, one)
        elif (
            one.dim()
            and one.shape[1:] == two.shape[1:]
            and bool((two == one[:1]).all())
            and bool((one == one[:1]).all())
        ):
            constant = _store(f"{node.name}.row", one[:1].contiguous())
            sizes = tuple(dim if isinstance(dim, int) else Sym(dim) for dim in node.outputs[0].shape)
            expands[node.name] = Node(
                node.name, "aten.expand.default", (Ref(f"{node.name}.row"), sizes), {}, node.outputs
            )
        else:
            continue
        if constant is not None:
            folded[node.name] = constant
    nodes = tuple(
        expands.get(node.name, node) for node in graph.nodes if node.name not in folded or node.name in expands
    )
    nodes = tuple(
        node for node in nodes if node.name not in expands or node.name in folded or node is not expands[node.name]
    )
    return replace(graph, nodes=nodes, constants=(*graph.constants, *folded.values()))


def _frontier(graph: LogicalGraph) -> set[str]:
    """Constant nodes that a non-constant node reads."""
    computed = {node.name for node in graph.nodes if node.name in graph.constant_names}
    return {
        ref.name
        for node in graph.nodes
        if node.name not in graph.constant_names
        for ref in node.refs()
        if ref.name in computed
    }


def _evaluate(graph: LogicalGraph, batch: int, frontier: set[str]) -> dict[str, torch.Tensor]:
    """Values of the frontier at this batch size, leaving out what is too large to compute here."""
    from autosbp.graph.materialise import constant_tensor, op_of, to_fx_arg

    bound = graph.bind(**{symbol: batch for symbol in graph.symbols})
    values: dict[str, Any] = {constant.name: constant_tensor(constant) for constant in graph.constants}
    for node in bound.nodes:
        if node.name not in graph.constant_names or any(ref.name not in values for ref in node.refs()):
            continue
        if sum(torch.Size(meta.sizes).numel() for meta in node.outputs) > MAX_EVALUATED_ELEMENTS:
            continue
        args = [to_fx_arg(arg, values) for arg in node.args]
        kwargs = {key: to_fx_arg(arg, values) for key, arg in node.kwargs.items()}
        values[node.name] = op_of(node.op)(*args, **kwargs)
    return {name: values[name] for name in frontier if name in values}


def _store(name: str, tensor: torch.Tensor) -> Constant | None:
    from autosbp.graph.capture import make_constant

    constant = make_constant(name, tensor)
    return constant if len(constant.data) <= MAX_FOLDED_TEXT else None


def _causal_masks(graph: LogicalGraph, values: dict[str, torch.Tensor]) -> LogicalGraph:
    """``sdpa(q, k, v, mask)`` with a lower-triangular boolean mask is ``sdpa(q, k, v, is_causal=True)``."""
    causal = {name for name, value in values.items() if _is_causal(value)}
    readers = consumers(graph)
    changed: dict[str, Node] = {}
    for name in causal:
        for node in readers.get(Ref(name), ()):
            if node.op == "aten.scaled_dot_product_attention.default" and node.args[3] == Ref(name):
                args = [*node.args, *(None, None, None, None, 0.0, False)[len(node.args) :]]
                args[3], args[5] = None, True
                changed[node.name] = replace(node, args=tuple(args))
    return replace(graph, nodes=tuple(changed.get(node.name, node) for node in graph.nodes))


def _is_causal(mask: torch.Tensor) -> bool:
    if mask.dtype != torch.bool or mask.dim() < 2 or mask.shape[-1] != mask.shape[-2]:
        return False
    lower = torch.ones(mask.shape[-2:], dtype=torch.bool).tril()
    return bool((mask == lower).all())
