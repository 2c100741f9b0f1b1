"""Expands the problem of a folded graph (``costmodel.folded_graph``) to the whole graph: variables for every layer.

Tables are those of the kept blocks, so nothing is computed per layer. Middle blocks are joined like the two kept ones.
If these two differ (a cluster of ops that begins in only one kind of block), nothing is expanded."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from autosbp.costmodel.folded_graph import NUM_KEPT_BLOCKS, FoldedGraph
from autosbp.search._base import Edge, SearchProblem
from autosbp.search.problem.builder import BuiltProblem

OUTSIDE = -1
LAST = NUM_KEPT_BLOCKS - 1


@dataclass(frozen=True)
class ExpandedProblem:
    """The expanded problem.

    ``copies[v]`` lists the variables of ``problem`` that variable v of the folded problem stands for, each with the
    block of the whole graph that it lies in (``OUTSIDE`` if none)."""

    problem: SearchProblem
    built: BuiltProblem
    folding: FoldedGraph
    copies: tuple[tuple[tuple[int, int], ...], ...]

    def names(self, variable: int, block: int) -> Callable[[str], str]:
        """Map from folded names of ops and parameters to those in a block of the whole graph, for one variable.

        A cluster may extend into the next block, with ops of that block."""
        folding = self.folding
        own = folding.block_of.get(self.built.anchors[variable], OUTSIDE)

        def name(folded: str) -> str:
            home = folding.block_of.get(folded, OUTSIDE)
            if home == OUTSIDE or own == OUTSIDE:
                return folded
            return folding.blocks[block + home - own][folding.position_of[folded]]

        return name


@dataclass(frozen=True)
class ExpandedShape:
    """Structure of the expanded problem.

    ``order`` has the folded variable of each variable; ``end_parts`` the two ends of each edge, and its folded edge."""

    order: tuple[int, ...]
    copies: tuple[tuple[tuple[int, int], ...], ...]
    ends: tuple[tuple[int, int, int], ...]


Shapes = dict[Hashable, ExpandedShape]


def expand_repeats(built: BuiltProblem, folding: FoldedGraph, known: Shapes | None = None) -> ExpandedProblem | None:
    """The expanded problem; None if the middle blocks differ. ``known`` caches the structure for problems of one folding."""
    return _Expander(built, folding).run({} if known is None else known)


class _Expander:
    def __init__(self, built: BuiltProblem, folding: FoldedGraph) -> None:
        self.built, self.folding, self.small = built, folding, built.problem
        self.block = [folding.block_of.get(anchor, OUTSIDE) for anchor in built.anchors]
        self.members: list[list[int]] = [[] for _ in range(NUM_KEPT_BLOCKS)]
        self.place = [0] * len(self.block)
        for variable, block in enumerate(self.block):
            if block != OUTSIDE:
                self.place[variable] = len(self.members[block])
                self.members[block].append(variable)

    def run(self, known: Shapes) -> ExpandedProblem | None:
        if not self._alike():
            return None
        small = self.small
        key = (self.built.anchors, tuple((edge.u, edge.v) for edge in small.edges))
        if key not in known:
            known[key] = self._shape()
        shape = known[key]
        tables = [edge.table for edge in small.edges]
        problem = SearchProblem(
            tuple(small.names[v] for v in shape.order),
            tuple(small.unary_s[v] for v in shape.order),
            tuple(small.memory_bytes[v] for v in shape.order),
            tuple(Edge(u, v, tables[at]) for u, v, at in shape.ends),
            small.memory_limit_bytes,
            small.fixed_s,
            small.fixed_memory_bytes,
        )
        return ExpandedProblem(problem, self.built, self.folding, shape.copies)

    def _shape(self) -> ExpandedShape:
        middle = self.folding.count - 2
        first, inner, last = (self.members[at] for at in (0, 1, LAST))
        before = [v for v, block in enumerate(self.block) if block == OUTSIDE]
        # Program order as far as it matters: variables outside blocks come first.
        starts = {0: len(before)}
        starts[1] = starts[0] + len(first)
        starts[LAST] = starts[1] + middle * len(inner)
        new: dict[tuple[int, int], int] = {(v, OUTSIDE): at for at, v in enumerate(before)}
        for at, variable in enumerate(first):
            new[variable, 0] = starts[0] + at
        for block in range(1, middle + 1):
            for at, variable in enumerate(inner):
                new[variable, block] = starts[1] + (block - 1) * len(inner) + at
        for at, variable in enumerate(last):
            new[variable, middle + 1] = starts[LAST] + at
        copies: list[list[tuple[int, int]]] = [[] for _ in self.block]
        order = [0] * len(new)
        for (variable, block), at in new.items():
            order[at] = variable
            copies[variable].append((at, block))
        return ExpandedShape(tuple(order), tuple(map(tuple, copies)), tuple(self._ends(new, middle)))

    def _ends(self, new: dict[tuple[int, int], int], middle: int) -> list[tuple[int, int, int]]:
        """Ends of each expanded edge: one per folded edge, or one per middle block."""
        edges: list[tuple[int, int, int]] = []
        end = middle + 1
        whole = {OUTSIDE: OUTSIDE, 0: 0, LAST: end}
        for place, edge in enumerate(self.small.edges):
            u, v = self.block[edge.u], self.block[edge.v]
            spans: list[tuple[int, int]]
            if u in whole and v in whole:
                spans = [(whole[u], whole[v])]
            elif (u, v) == (1, 1):
                spans = [(at, at) for at in range(1, end)]
            elif {u, v} == {1, 2}:
                spans = [(at, at + 1) if u == 1 else (at + 1, at) for at in range(1, middle)]
            elif {u, v} == {0, 1}:
                spans = [(u, v)]
            elif {u, v} == {2, LAST}:
                spans = [(middle, end) if v == LAST else (end, middle)]
            else:
                continue  # within the second middle block: equal to the first
            one, two = self._first(edge.u), self._first(edge.v)
            edges += [(new[one, s], new[two, t], place) for s, t in spans]
        return edges

    def _first(self, variable: int) -> int:
        """For a variable of the second middle block, its counterpart in the first; others are returned unchanged."""
        return self.members[1][self.place[variable]] if self.block[variable] == 2 else variable

    def _alike(self) -> bool:
        one, two = self.members[1], self.members[2]
        if len(one) != len(two):
            return False
        small = self.small
        if any(small.unary_s[a] is not small.unary_s[b] or small.memory_bytes[a] is not small.memory_bytes[b]
               for a, b in zip(one, two, strict=True)):  # fmt: skip
            return False
        inside: dict[int, list[tuple[int, int, int]]] = {1: [], 2: []}
        joints: dict[tuple[int, int], list[tuple[int, int, int]]] = {(0, 1): [], (1, 2): [], (2, LAST): []}
        for edge in small.edges:
            u, v = self.block[edge.u], self.block[edge.v]
            entry = (self.place[edge.u], self.place[edge.v], id(edge.table))
            if u == v and u in inside:
                inside[u].append(entry)
            elif u in inside or v in inside:
                joint = (min(u, v), max(u, v))
                if joint not in joints:
                    return False
                joints[joint].append(entry)
        return inside[1] == inside[2]


def part_variables(built: BuiltProblem, folding: FoldedGraph) -> tuple[list[int], list[int], list[int]]:
    """Variables of the folded problem before all blocks, in one middle block, and after all blocks."""
    return split_by_blocks(built.anchors, folding)


def split_by_blocks(anchors: Sequence[str], folding: FoldedGraph) -> tuple[list[int], list[int], list[int]]:
    """Indices of the anchors, of the folded graph, before all blocks, in one middle block, and after all blocks."""
    positions = folding.graph.positions
    blocks = [positions[name] for name in folding.block_of if name in positions]
    first, last = min(blocks), max(blocks)
    before, block, behind = [], [], []
    for at, anchor in enumerate(anchors):
        home, place = folding.block_of.get(anchor, OUTSIDE), positions.get(anchor)
        if home == 1:
            block.append(at)
        elif place is not None and anchor not in folding.block_of:
            if place < first:
                before.append(at)
            elif place > last:
                behind.append(at)
    return before, block, behind


def block_subproblem(unfolded: ExpandedProblem) -> SearchProblem:
    """One middle block alone, with free input and output layouts, without a memory limit.

    No run of n blocks costs less than n times its optimum."""
    return _part(unfolded, part_variables(unfolded.built, unfolded.folding)[1])


def end_parts(unfolded: ExpandedProblem) -> tuple[SearchProblem, SearchProblem]:
    """The parts before the first block and after the last one, each alone as in ``block_subproblem``."""
    before, _, behind = part_variables(unfolded.built, unfolded.folding)
    return _part(unfolded, before), _part(unfolded, behind)


def _part(unfolded: ExpandedProblem, inner: Sequence[int]) -> SearchProblem:
    """Some variables of the folded problem, with the edges among them."""
    folded = unfolded.built.problem
    new = {variable: at for at, variable in enumerate(inner)}
    return SearchProblem(
        tuple(folded.names[v] for v in inner),
        tuple(folded.unary_s[v] for v in inner),
        tuple(folded.memory_bytes[v] for v in inner),
        tuple(Edge(new[e.u], new[e.v], e.table) for e in folded.edges if e.u in new and e.v in new),
    )
