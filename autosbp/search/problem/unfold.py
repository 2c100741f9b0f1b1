"""From the problem of a folded graph (``costmodel.folding``) to that of the whole: a variable for each op of each layer.

Tables are those of the kept blocks, so nothing is computed per layer. Blocks in the middle are joined as the two kept ones
are; where these two turn out to differ (a cluster of ops that begins in one kind of block only), nothing is unfolded.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from autosbp.costmodel.folding import KEPT, Folding
from autosbp.search._base import Edge, SearchProblem
from autosbp.search.problem.build import BuiltProblem

OUTSIDE = -1
LAST = KEPT - 1


@dataclass(frozen=True)
class UnfoldedProblem:
    """``copies[v]`` lists the variables of ``problem`` that variable v of the folded one stands for, with the block of the
    whole that each lies in (``OUTSIDE`` where in none)."""

    problem: SearchProblem
    built: BuiltProblem
    folding: Folding
    copies: tuple[tuple[tuple[int, int], ...], ...]

    def names(self, variable: int, block: int) -> Callable[[str], str]:
        """From names of ops and parameters in the folded graph, where a variable is, to those in a block of the whole. A
        cluster may go on into the next block, with ops of that one."""
        folding = self.folding
        own = folding.block_of.get(self.built.anchors[variable], OUTSIDE)

        def name(folded: str) -> str:
            home = folding.block_of.get(folded, OUTSIDE)
            if home == OUTSIDE or own == OUTSIDE:
                return folded
            return folding.blocks[block + home - own][folding.place_of[folded]]

        return name


@dataclass(frozen=True)
class Shape:
    """Where the variables and the edges of the whole come from: ``order`` names the folded variable of each, ``ends`` the two
    ends of each edge with its folded edge."""

    order: tuple[int, ...]
    copies: tuple[tuple[tuple[int, int], ...], ...]
    ends: tuple[tuple[int, int, int], ...]


Shapes = dict[Hashable, Shape]


def unfold(built: BuiltProblem, folding: Folding, known: Shapes | None = None) -> UnfoldedProblem | None:
    """The whole problem; None where the blocks in the middle are not alike. ``known`` keeps what problems of one folding
    have in common."""
    return _Unfolder(built, folding).run({} if known is None else known)


class _Unfolder:
    def __init__(self, built: BuiltProblem, folding: Folding) -> None:
        self.built, self.folding, self.small = built, folding, built.problem
        self.block = [folding.block_of.get(anchor, OUTSIDE) for anchor in built.anchors]
        self.members: list[list[int]] = [[] for _ in range(KEPT)]
        self.place = [0] * len(self.block)
        for variable, block in enumerate(self.block):
            if block != OUTSIDE:
                self.place[variable] = len(self.members[block])
                self.members[block].append(variable)

    def run(self, known: Shapes) -> UnfoldedProblem | None:
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
        return UnfoldedProblem(problem, self.built, self.folding, shape.copies)

    def _shape(self) -> Shape:
        middle = self.folding.count - 2
        first, inner, last = (self.members[at] for at in (0, 1, LAST))
        before = [v for v, block in enumerate(self.block) if block == OUTSIDE]
        # Program order, as far as it matters: what stands outside comes first.
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
        return Shape(tuple(order), tuple(map(tuple, copies)), tuple(self._ends(new, middle)))

    def _ends(self, new: dict[tuple[int, int], int], middle: int) -> list[tuple[int, int, int]]:
        """Each edge of the folded problem where it stands for one, or for one in each block of the middle."""
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
                continue  # within the second of the middle: as within the first
            one, two = self._first(edge.u), self._first(edge.v)
            edges += [(new[one, s], new[two, t], place) for s, t in spans]
        return edges

    def _first(self, variable: int) -> int:
        """Its like in the first block of the middle, of a variable in the second."""
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


def part_variables(built: BuiltProblem, folding: Folding) -> tuple[list[int], list[int], list[int]]:
    """Variables of the folded problem that lie before all blocks, in one block of the middle, and behind all blocks."""
    return parts_of(built.anchors, folding)


def parts_of(anchors: Sequence[str], folding: Folding) -> tuple[list[int], list[int], list[int]]:
    """Places of the anchors, of the folded graph, that lie before all blocks, in one block of the middle, and behind all."""
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


def one_block(unfolded: UnfoldedProblem) -> SearchProblem:
    """One block of the middle alone, free to choose what it is handed and hands on, without a memory limit: no run of n
    blocks costs less than n times its optimum."""
    return _part(unfolded, part_variables(unfolded.built, unfolded.folding)[1])


def ends(unfolded: UnfoldedProblem) -> tuple[SearchProblem, SearchProblem]:
    """What comes before the first block, and behind the last one, each alone as ``one_block`` is."""
    before, _, behind = part_variables(unfolded.built, unfolded.folding)
    return _part(unfolded, before), _part(unfolded, behind)


def _part(unfolded: UnfoldedProblem, inner: Sequence[int]) -> SearchProblem:
    """Some variables of the folded problem, with the edges among them."""
    folded = unfolded.built.problem
    new = {variable: at for at, variable in enumerate(inner)}
    return SearchProblem(
        tuple(folded.names[v] for v in inner),
        tuple(folded.unary_s[v] for v in inner),
        tuple(folded.memory_bytes[v] for v in inner),
        tuple(Edge(new[e.u], new[e.v], e.table) for e in folded.edges if e.u in new and e.v in new),
    )
