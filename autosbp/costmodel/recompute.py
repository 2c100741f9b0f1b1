"""Which ops are run forward again in backward, rather than that their results are kept (Korthikanti et al. 2022).

``full``: all of every block; only the block's input is kept (section 5). ``selective``: the attention core alone, which
keeps much and computes little. ``none``: nothing.
"""

from __future__ import annotations

from autosbp.costmodel.blocks import find_blocks
from autosbp.errors import InputError
from autosbp.graph.ir import LogicalGraph, Node
from autosbp.sbp.rules import sharding_of

MODES = ("none", "selective", "full")


def recomputed_ops(graph: LogicalGraph, mode: str) -> frozenset[str]:
    """Names of the ops that a mode repeats; ``InputError`` for an unknown mode."""
    if mode not in MODES:
        raise InputError("recompute", mode, f"one of {', '.join(MODES)} is expected")
    if mode == "full":
        return frozenset(name for block in find_blocks(graph).blocks for name in block)
    return attention_core(graph) if mode == "selective" else frozenset()


def attention_core(graph: LogicalGraph) -> frozenset[str]:
    """Products of activations with one another, and all between two of them: scores, softmax, dropout, and attention
    over values. A product with a parameter ends a core."""
    products = {
        node.name
        for node in graph.nodes
        if node.name in graph.computed and sharding_of(graph, node).flops and not _weighted(graph, node)
    }
    behind: set[str] = set()
    for node in graph.nodes:
        follows = any(ref.name in behind for ref in node.refs())
        if node.name in products or (follows and not (_weighted(graph, node) and sharding_of(graph, node).flops)):
            behind.add(node.name)
    needed = set(products)
    for node in reversed(graph.nodes):
        if node.name in needed:
            needed.update(ref.name for ref in node.refs() if ref.name in behind)
    return frozenset(needed & behind)


def _weighted(graph: LogicalGraph, node: Node) -> bool:
    return any(ref.name in graph.parameter_names for ref in node.refs())
