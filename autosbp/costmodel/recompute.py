"""Which ops are run forward again in backward, rather than that their results are kept (Korthikanti et al. 2022).

``full``: all of every block; only the block's input is kept (section 5). ``selective``: the attention core alone, which
keeps much and computes little. ``none``: nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import groupby

from autosbp.costmodel.blocks import find_blocks
from autosbp.costmodel.repeats import find_repeats
from autosbp.errors import InputError
from autosbp.graph.ir import LogicalGraph, Node
from autosbp.plan import Strategy
from autosbp.sbp.rules import sharding_of

Runs = tuple[tuple[str, str], ...]
MODES = ("none", "selective", "full")


def recomputed_ops(graph: LogicalGraph, mode: str) -> frozenset[str]:
    """Names of the ops that a mode repeats; ``InputError`` for an unknown mode."""
    if mode not in MODES:
        raise InputError("recompute", mode, f"one of {', '.join(MODES)} is expected")
    if mode == "full":
        return frozenset(name for block in find_blocks(graph).blocks for name in block)
    return attention_core(graph) if mode == "selective" else frozenset()


def recomputable_blocks(graph: LogicalGraph) -> tuple[tuple[str, ...], ...]:
    """The ops of each repeated block, in order: those that hand one value to the next, or else whatever repeats (encoders
    with their decoders, experts whose routers all add to the loss). ``graph`` is bound."""
    return find_blocks(graph).blocks or find_repeats(graph)


def block_runs(blocks: Sequence[Sequence[str]], interval: int = 1, cuts: Collection[str] = (), kept: int = 0) -> Runs:
    """Runs of repeated blocks one behind the other, as ``Strategy.recompute`` has them.

    Args:
        blocks: names of the ops of each, in order.
        interval: blocks of a run; the last of a chunk may have fewer.
        cuts: ops with which chunks of a pipeline begin; a block that one is in belongs to both chunks, in parts.
        kept: blocks of each chunk, the last ones, that are not recomputed: those that backward comes to first.
    """
    chunks: list[list[list[str]]] = [[]]
    for block in blocks:
        chunks[-1].append([])
        for name in block:
            if name in cuts:
                if not chunks[-1][-1]:
                    chunks[-1].pop()
                chunks.append([[]])
            chunks[-1][-1].append(name)
    runs = []
    for parts in chunks:
        chosen = parts[: max(len(parts) - kept, 0)]
        runs += [chosen[at : at + interval] for at in range(0, len(chosen), interval)]
    return tuple((run[0][0], run[-1][-1]) for run in runs)


def parts_of_chunks(graph: LogicalGraph, blocks: Sequence[Sequence[str]], cuts: Sequence[str]) -> list[list[list[str]]]:
    """The blocks of each chunk of a pipeline, in order; one that a cut is in belongs to both chunks, in parts."""
    place = {node.name: at for at, node in enumerate(graph.nodes)}
    begins = [place[name] for name in cuts]
    chunks: list[list[list[str]]] = [[] for _ in range(len(cuts) + 1)]
    for block in blocks:
        for chunk, part in groupby(block, key=lambda name: bisect_right(begins, place[name])):
            chunks[chunk].append(list(part))
    return chunks


def chunk_runs(chunks: Sequence[Sequence[Sequence[str]]], kept: Sequence[int]) -> Runs:
    """Runs of one block each, where of every chunk (``parts_of_chunks``) so many, the last ones, are kept."""
    return tuple(
        (part[0], part[-1])
        for parts, left in zip(chunks, kept, strict=True)
        for part in parts[: max(len(parts) - left, 0)]
    )


def recomputing(graph: LogicalGraph, strategy: Strategy, interval: int = 1) -> Strategy:
    """``strategy`` with every repeated block recomputed, ``interval`` together. ``graph`` is bound at its microbatch."""
    cuts = strategy.pipeline.cuts if strategy.pipeline else ()
    return replace(strategy, recompute=block_runs(recomputable_blocks(graph), interval, cuts))


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
