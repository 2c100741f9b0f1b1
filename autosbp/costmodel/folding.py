"""A model with most of its repeated blocks left out, and how to name what was.

Blocks that are equal cost the same, so what search computes for four of them (the first, two in the middle, the last) it
knows for all: nothing is built, or looked at, once per layer. Layouts are *not* tied: the folded problem is unfolded into
one with a variable for each op of each layer (``search.problem.unfold``).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

from autosbp.costmodel.blocks import find_blocks
from autosbp.graph.ir import Arg, LogicalGraph, Node, Ref

KEPT = 4
"""Blocks of a folded graph: the first, two that stand for all between, and the last."""
LEAST = 6
"""Fewer blocks than this are not folded."""
Place = tuple[int, int]  # the block of an op or parameter, and where in it


@dataclass(frozen=True)
class Folding:
    """``graph`` is ``whole`` with ``KEPT`` of its blocks. ``blocks[i]`` are the ops and parameters of block i of the whole,
    each in the same place in every block but the first, whose parameters come in their own order, behind ``num_ops`` ops;
    ``kept[k]`` is the block that the folded graph's block k is."""

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
        """The kept block of an op or parameter of the folded graph; others are in none."""
        return {name: at for at, block in enumerate(self.kept) for name in self.blocks[block]}

    @cached_property
    def place_of(self) -> Mapping[str, int]:
        """Where in its block a name of the folded graph stands."""
        return {name: place for block in self.kept for place, name in enumerate(self.blocks[block])}


def fold(graph: LogicalGraph) -> Folding | None:
    """The folded graph; None where blocks are few, or differ in more than the names of their ops and parameters, or are
    joined by more than what each hands to the next. ``graph`` may be symbolic."""
    ops = find_blocks(graph.captured).blocks
    if len(ops) < LEAST:
        return None
    blocks = _with_parameters(graph, ops)
    home = {name: (at, place) for at, block in enumerate(blocks) for place, name in enumerate(block)}
    if not _handed_on(graph, home, len(blocks)) or len({*_kinds(graph, home, ops[1:])}) > 1:
        return None
    return Folding(graph, _folded(graph, blocks), blocks, (*range(KEPT - 1), len(blocks) - 1), len(ops[1]))


def _with_parameters(graph: LogicalGraph, blocks: Sequence[Sequence[str]]) -> tuple[tuple[str, ...], ...]:
    """Each block's ops, and behind these the parameters that it alone reads, as they come."""
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


def _handed_on(graph: LogicalGraph, home: Mapping[str, Place], count: int) -> bool:
    """Whether each block's values are read by itself and by the next one alone."""
    for node in graph.nodes:
        at = home.get(node.name, (count, 0))[0]
        if any(ref.name in home and home[ref.name][0] not in (at, at - 1) for ref in node.refs()):
            return False
    return graph.loss.name not in home


def _kinds(graph: LogicalGraph, home: Mapping[str, Place], blocks: Sequence[Sequence[str]]) -> Iterator[Hashable]:
    """Each block but for its names: what it reads is of blocks as far behind, or data that is alike."""
    leaves = {leaf.name: (leaf.meta, leaf.trained) for leaf in graph.parameters}

    def source(at: int, ref: Ref) -> Hashable:
        if ref.name in home:
            made, place = home[ref.name]
            return at - made, place, ref.index, leaves.get(ref.name)
        if ref.name in leaves:  # others read it, too
            return at
        return ref if ref.name in graph.computed else graph.meta(ref)

    for block in blocks:
        at = home[block[0]][0]
        yield tuple(graph.nodes[graph.positions[name]].kind(partial(source, at)) for name in block)


def _folded(graph: LogicalGraph, blocks: Sequence[Sequence[str]]) -> LogicalGraph:
    """Without the blocks that are left out; what the last block reads of the one before it, it reads of the last of those in
    the middle."""
    dropped = {name for block in blocks[KEPT - 1 : -1] for name in block}
    before = dict(zip(blocks[-2], blocks[KEPT - 2], strict=True))

    def moved(arg: Arg) -> Arg:
        return Ref(before[arg.name], arg.index) if isinstance(arg, Ref) and arg.name in before else arg

    last = set(blocks[-1])
    nodes = [node.map_args(moved) if node.name in last else node for node in graph.nodes if node.name not in dropped]
    return _needed_alone(graph, nodes)


def _needed_alone(graph: LogicalGraph, nodes: Sequence[Node]) -> LogicalGraph:
    """A graph of these nodes, less what nothing in it reads."""
    needed = {graph.loss.name}
    used: list[Node] = []
    for node in reversed(nodes):
        if node.name in needed or node.name in graph.computed:
            used.append(node)
            needed.update(ref.name for ref in node.refs())
    return replace(
        graph,
        parameters=tuple(leaf for leaf in graph.parameters if leaf.name in needed),
        inputs=tuple(leaf for leaf in graph.inputs if leaf.name in needed),
        constants=tuple(leaf for leaf in graph.constants if leaf.name in needed),
        nodes=tuple(used[::-1]),
    )
