"""Prepare an exported program for import: make it functional, and detach the outputs of ``no_grad`` regions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

NO_GRAD, AUTOCAST = "wrap_with_set_grad_enabled", "wrap_with_autocast"


def functionalize(program: Any) -> Any:
    """The program without in-place ops; tensors computed under ``no_grad`` are detached where they leave the region."""
    graphs = [program.graph_module, *_regions(program.graph_module)]
    for module in graphs:
        _stop_gradients(module)
    if any(_needs_rewriting(node) for module in graphs for node in module.graph.nodes):
        return program.run_decompositions({})  # decomposes nothing, but makes every op functional and casts explicit
    return program


def region_kind(node: Any) -> str:
    """Name of a call of a region's subgraph, such as ``wrap_with_set_grad_enabled``; "" for other nodes."""
    if node.op != "call_function" or isinstance(node.target, torch._ops.OpOverload):
        return ""
    return str(getattr(node.target, "__name__", ""))


def _regions(module: torch.fx.GraphModule) -> Iterator[torch.fx.GraphModule]:
    """Subgraphs of regions, at any depth."""
    for child in module.children():
        if isinstance(child, torch.fx.GraphModule):
            yield child
            yield from _regions(child)


def _stop_gradients(module: torch.fx.GraphModule) -> None:
    for node in list(module.graph.nodes):
        if region_kind(node) != NO_GRAD or node.args[0] is not False:
            continue
        region = getattr(module, node.args[1].target)
        output = next(each for each in region.graph.nodes if each.op == "output")
        left = []
        for value in output.args[0]:
            if isinstance(value, torch.fx.Node) and _is_float(value.meta.get("val")):
                with region.graph.inserting_before(output):
                    stopped = region.graph.call_function(torch.ops.aten.detach.default, (value,))
                stopped.meta = dict(value.meta)
                value = stopped
            left.append(value)
        output.args = (tuple(left),)
        region.recompile()


def _is_float(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _needs_rewriting(node: Any) -> bool:
    """Whether a node changes a tensor in place (batch norm: its running statistics), or casts by its autocast context."""
    if region_kind(node) == AUTOCAST:
        return node.args[2] is not False  # (device type, dtype, enabled, cache, graph, *operands)
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return False
    aten = torch.ops.aten
    if node.target is aten.detach_.default:
        return False
    return bool(node.target._schema.is_mutable) or node.target is aten.batch_norm.default
