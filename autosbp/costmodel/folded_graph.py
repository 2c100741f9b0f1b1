"""A graph with most of its repeated blocks removed, and the mapping back to the full graph.

Equal blocks cost the same. Search therefore computes costs for four blocks (the first, two in the middle, the last) and
applies them to all, so nothing is built or examined once per layer. Layouts are *not* tied:
``search.problem.expand_repeats`` expands the folded problem into one with a variable for each op of each layer.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

from autosbp.costmodel.block_structure import find_blocks
from autosbp.graph.ir import Arg, LogicalGraph, Node, Ref

NUM_KEPT_BLOCKS = 4
"""Number of blocks in a folded graph: the first, two that represent all middle blocks, and the last."""
MIN_BLOCKS = 6
"""Minimum number of blocks for folding."""
Place = tuple[int, int]  # (block of an op or parameter, position in the block)


@dataclass(frozen=True)
class FoldedGraph:
    """A graph with repeated blocks removed.

    Args:
        whole: the full graph.
        graph: the full graph reduced to ``NUM_KEPT_BLOCKS`` of its blocks.
        blocks: names of the ops of each block of the full graph, then of its parameters. A position means the same in
            every block, except in the first, whose parameters have their own order.
        kept: ``kept[k]`` is the full graph's index of the folded graph's block k.
        num_ops: ops per block; parameters follow them.
    """

    whole: LogicalGraph
    graph: LogicalGraph
    blocks: tuple[tuple[str, ...], ...]
    kept: tuple[int, ...]
    num_ops: int

    @property
    def count(self) -> int:
        return len(self.blocks)

    @cached_property
    def block_of(self) -> Mapping[str, int]:
        """Index of the folded graph's block of each op or parameter; names outside blocks are absent."""
        return {name: at for at, block in enumerate(self.kept) for name in self.blocks[block]}

    @cached_property
    def position_of(self) -> Mapping[str, int]:
        """Position in its block of each name of the folded graph."""
        return {name: place for block in self.kept for place, name in enumerate(self.blocks[block])}


def fold(graph: LogicalGraph) -> FoldedGraph | None:
    """Fold a graph, which may be symbolic.

    Returns:
        None if there are fewer than ``MIN_BLOCKS`` blocks, if blocks differ in more than the names of their ops and
        parameters, or if a block reads from any block other than itself and the previous one.
    """
    ops = find_blocks(graph.bound_at_capture).blocks
    if len(ops) < MIN_BLOCKS:
        return None
    blocks = _with_parameters(graph, ops)
    home = {name: (at, place) for at, block in enumerate(blocks) for place, name in enumerate(block)}
    if not _reads_only_previous_block(graph, home, len(blocks)) or len({*_kinds(graph, home, ops[1:])}) > 1:
        return None
    return FoldedGraph(
        graph, _folded(graph, blocks), blocks, (*range(NUM_KEPT_BLOCKS - 1), len(blocks) - 1), len(ops[1])
    )


def _with_parameters(graph: LogicalGraph, blocks: Sequence[Sequence[str]]) -> tuple[tuple[str, ...], ...]:
    """Each block's ops, followed by the parameters that only this block reads, in order of first read."""
    home = {name: at for at, block in enumerate(blocks) for name in block}
    owners: dict[str, int | None] = {}
    for node in graph.nodes:
        at = home.get(node.name)
        for ref in node.refs():
            if ref.name in graph.parameter_names and owners.setdefault(ref.name, at) != at:
                owners[ref.name] = None
    owned: list[list[str]] = [[] for _ in blocks]
    for name, owner in owners.items():
        if owner is not None:
            owned[owner].append(name)
    return tuple((*block, *own) for block, own in zip(blocks, owned, strict=True))


def _reads_only_previous_block(graph: LogicalGraph, home: Mapping[str, Place], count: int) -> bool:
    """Whether only the block itself and the next one read each block's values."""
    for node in graph.nodes:
        at = home.get(node.name, (count, 0))[0]
        if any(ref.name in home and home[ref.name][0] not in (at, at - 1) for ref in node.refs()):
            return False
    return graph.loss.name not in home


def _kinds(graph: LogicalGraph, home: Mapping[str, Place], blocks: Sequence[Sequence[str]]) -> Iterator[Hashable]:
    """Name-independent key of each block: reads are relative block offsets, or the metadata of data."""
    leaves = {leaf.name: (leaf.meta, leaf.trained) for leaf in graph.parameters}

    def source(at: int, ref: Ref) -> Hashable:
        if ref.name in home:
            made, place = home[ref.name]
            return at - made, place, ref.index, leaves.get(ref.name)
        if ref.name in leaves:  # other blocks read it too
            return at
        return ref if ref.name in graph.parameter_dependent else graph.meta(ref)

    for block in blocks:
        at = home[block[0]][0]
        yield tuple(graph.nodes[graph.positions[name]].kind(partial(source, at)) for name in block)


def _folded(graph: LogicalGraph, blocks: Sequence[Sequence[str]]) -> LogicalGraph:
    """The graph without the dropped blocks; the last block reads from the last kept middle block."""
    dropped = {name for block in blocks[NUM_KEPT_BLOCKS - 1 : -1] for name in block}
    before = dict(zip(blocks[-2], blocks[NUM_KEPT_BLOCKS - 2], strict=True))

    def moved(arg: Arg) -> Arg:
        return Ref(before[arg.name], arg.index) if isinstance(arg, Ref) and arg.name in before else arg

    last = set(blocks[-1])
    nodes = [node.map_args(moved) if node.name in last else node for node in graph.nodes if node.name not in dropped]
    return _without_dead_nodes(graph, nodes)


def _without_dead_nodes(graph: LogicalGraph, nodes: Sequence[Node]) -> LogicalGraph:
    """A graph of these nodes without leaves and nodes that nothing reads."""
    needed = {graph.loss.name}
    used: list[Node] = []
    for node in reversed(nodes):
        if node.name in needed or node.name in graph.parameter_dependent:
            used.append(node)
            needed.update(ref.name for ref in node.refs())
    return replace(
        graph,
        parameters=tuple(leaf for leaf in graph.parameters if leaf.name in needed),
        inputs=tuple(leaf for leaf in graph.inputs if leaf.name in needed),
        constants=tuple(leaf for leaf in graph.constants if leaf.name in needed),
        nodes=tuple(used[::-1]),
    )
