"""Activation checkpointing modes: which ops run again in backward (Korthikanti et al. 2022).

``full``: every op of every block; only the block's input is saved (section 5). ``selective``: only the attention core,
which saves much and computes little. ``none``: nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import groupby

from autosbp.costmodel.block_structure import find_blocks
from autosbp.costmodel.repeated_ops import find_repeats
from autosbp.errors import InputError
from autosbp.graph.ir import LogicalGraph, Node
from autosbp.plan.plan import Strategy
from autosbp.sbp.rules import sharding_of

Segments = tuple[tuple[str, str], ...]
MODES = ("none", "selective", "full")


def recomputed_ops(graph: LogicalGraph, mode: str) -> frozenset[str]:
    """Names of the ops that a mode recomputes; ``InputError`` for an unknown mode."""
    if mode not in MODES:
        raise InputError("recompute", mode, f"expected one of {', '.join(MODES)}")
    if mode == "full":
        return frozenset(name for block in find_blocks(graph).blocks for name in block)
    return attention_core(graph) if mode == "selective" else frozenset()


def recomputable_blocks(graph: LogicalGraph) -> tuple[tuple[str, ...], ...]:
    """The ops of each repeated block, in order.

    Blocks that pass one value to the next; if there are none, any repeated sequence of ops (encoders with their
    decoders, experts whose routers all add to the loss). ``graph`` is bound.
    """
    return find_blocks(graph).blocks or find_repeats(graph)


def checkpointing_segments(
    blocks: Sequence[Sequence[str]], interval: int = 1, cuts: Collection[str] = (), kept: int = 0
) -> Segments:
    """Checkpointing segments of consecutive repeated blocks, in the form of ``Strategy.recompute``.

    Args:
        blocks: op names of each block, in order.
        interval: blocks per segment; the last segment of a chunk may have fewer.
        cuts: first ops of pipeline chunks; a cut inside a block splits it between both chunks.
        kept: number of blocks at the end of each chunk without recomputation: backward reaches these first.
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


def blocks_of_chunks(
    graph: LogicalGraph, blocks: Sequence[Sequence[str]], cuts: Sequence[str]
) -> list[list[list[str]]]:
    """The blocks of each pipeline chunk, in order; a cut inside a block splits it between both chunks."""
    place = {node.name: at for at, node in enumerate(graph.nodes)}
    begins = [place[name] for name in cuts]
    chunks: list[list[list[str]]] = [[] for _ in range(len(cuts) + 1)]
    for block in blocks:
        for chunk, part in groupby(block, key=lambda name: bisect_right(begins, place[name])):
            chunks[chunk].append(list(part))
    return chunks


def per_chunk_segments(chunks: Sequence[Sequence[Sequence[str]]], kept: Sequence[int]) -> Segments:
    """Checkpointing segments of one block each, without the last ``kept[c]`` blocks of each chunk c (``blocks_of_chunks``)."""
    return tuple(
        (part[0], part[-1])
        for parts, left in zip(chunks, kept, strict=True)
        for part in parts[: max(len(parts) - left, 0)]
    )


def with_full_checkpointing(graph: LogicalGraph, strategy: Strategy, interval: int = 1) -> Strategy:
    """``strategy`` with every repeated block recomputed, ``interval`` blocks per segment.

    ``graph`` is bound at the strategy's microbatch size.
    """
    cuts = strategy.pipeline.cuts if strategy.pipeline else ()
    return replace(strategy, recompute=checkpointing_segments(recomputable_blocks(graph), interval, cuts))


def attention_core(graph: LogicalGraph) -> frozenset[str]:
    """Matmuls between activations and all ops between two of them: scores, softmax, dropout, attention over values.

    A matmul with a parameter ends a core.
    """
    products = {
        node.name
        for node in graph.nodes
        if node.name in graph.parameter_dependent and sharding_of(graph, node).flops and not _weighted(graph, node)
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
