"""A model with most of its repeated blocks left out, and how to name what was.

Blocks that are equal cost the same, so what search computes for four of them (the first, two in the middle, the last) it
knows for all: nothing is built, or looked at, once per layer. Layouts are *not* tied: the folded problem is unfolded into
one with a variable for each op of each layer (``search.problem.unfold``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from autosbp.costmodel.blocks import Blocks, find_blocks
from autosbp.graph.ir import Arg, LogicalGraph, Node, Ref

KEPT = 4
"""Blocks of a folded graph: the first, two that stand for all between, and the last."""
LEAST = 6
"""Fewer blocks than this are not folded."""


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
    found = find_blocks(graph.captured)
    if len(found.blocks) < LEAST:
        return None
    return _Folder(graph, found).run()


class _Folder:
    def __init__(self, graph: LogicalGraph, found: Blocks) -> None:
        self.graph, self.blocks = graph, found.blocks
        nodes = {node.name: node for node in graph.nodes}
        self.nodes = [[nodes[name] for name in block] for block in self.blocks]
        self.home = {name: (at, place) for at, block in enumerate(self.blocks) for place, name in enumerate(block)}
        self.owner: dict[str, int | None] = {}
        for node in graph.nodes:
            block = self.home.get(node.name, (None, 0))[0]
            for ref in node.refs():
                if ref.name in graph.parameter_names and self.owner.setdefault(ref.name, block) != block:
                    self.owner[ref.name] = None
        self.leaves = {leaf.name: leaf for leaf in graph.parameters}

    def run(self) -> Folding | None:
        count = len(self.blocks)
        if not self._handed_on():
            return None
        template = [*self.blocks[1], *self._owned(1)]
        blocks = [(*self.blocks[0], *self._owned(0)), tuple(template)]
        for block in range(2, count):
            pairs = self._pairs(1, block)
            if pairs is None:
                return None
            blocks.append(tuple(pairs[name] for name in template))
        return Folding(self.graph, self._folded(), tuple(blocks), (*range(KEPT - 1), count - 1), len(self.blocks[1]))

    def _owned(self, block: int) -> Iterator[str]:
        return (name for name, owner in self.owner.items() if owner == block)

    def _handed_on(self) -> bool:
        """Whether each block's values are read by itself and by the next one alone."""
        last = len(self.blocks) - 1
        for node in self.graph.nodes:
            at = self.home.get(node.name, (last + 1, 0))[0]
            for ref in node.refs():
                made = self.home.get(ref.name)
                if made is not None and made[0] not in (at, at - 1):
                    return False
        return self.graph.loss.name not in self.home

    def _pairs(self, template: int, block: int) -> dict[str, str] | None:
        """From the names of one block to those of another; None where they differ in more."""
        pairs: dict[str, str] = {}
        for one, other in zip(self.nodes[template], self.nodes[block], strict=True):
            alike = one.op == other.op and one.rule == other.rule and one.outputs == other.outputs
            if not alike or one.kwargs.keys() != other.kwargs.keys():
                return None
            pairs[one.name] = other.name
            ours = (*one.args, *(one.kwargs[key] for key in one.kwargs))
            theirs = (*other.args, *(other.kwargs[key] for key in one.kwargs))
            if not self._same(ours, theirs, template, block, pairs):
                return None
        return pairs if len(set(pairs.values())) == len(pairs) else None

    def _same(self, one: Arg, other: Arg, template: int, block: int, pairs: dict[str, str]) -> bool:
        if isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
            return all(self._same(a, b, template, block, pairs) for a, b in zip(one, other, strict=True))
        if not isinstance(one, Ref) or not isinstance(other, Ref):
            return type(one) is type(other) and bool(one == other)
        if one.name in self.home or other.name in self.home:
            ours, theirs = self.home.get(one.name), self.home.get(other.name)
            if ours is None or theirs is None or one.index != other.index:
                return False
            return (ours[0] - template, ours[1]) == (theirs[0] - block, theirs[1])
        if one.name in self.leaves or other.name in self.leaves:
            return self._same_parameter(one.name, other.name, template, block, pairs)
        data = one.name not in self.graph.computed and other.name not in self.graph.computed
        return one == other or (data and self.graph.meta(one) == self.graph.meta(other))

    def _same_parameter(self, one: str, other: str, template: int, block: int, pairs: dict[str, str]) -> bool:
        if self.owner.get(one) != template or self.owner.get(other) != block:
            return False
        ours, theirs = self.leaves[one], self.leaves[other]
        return ours.meta == theirs.meta and ours.trained == theirs.trained and pairs.setdefault(one, other) == other

    def _folded(self) -> LogicalGraph:
        """Without the blocks that are left out; what the last block reads of the one before it, it reads of the last of
        those in the middle."""
        count = len(self.blocks)
        dropped = {name for block in self.blocks[KEPT - 1 : count - 1] for name in block}
        before = dict(zip(self.blocks[count - 2], self.blocks[KEPT - 2], strict=True))

        def moved(arg: Arg) -> Arg:
            return Ref(before[arg.name], arg.index) if isinstance(arg, Ref) and arg.name in before else arg

        last = set(self.blocks[count - 1])
        nodes: list[Node] = []
        for node in self.graph.nodes:
            if node.name not in dropped:
                nodes.append(node.map_args(moved) if node.name in last else node)
        return _needed_alone(self.graph, nodes)


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
