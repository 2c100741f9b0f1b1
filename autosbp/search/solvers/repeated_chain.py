"""Elimination of a run of equal blocks at once: one block's joint-to-joint table, its min-plus power, and the rest.

A block costs the same in every layer, so its inner variables are eliminated once. A run of n blocks is the n-th power
of the resulting table, computed with O(log n) products. Assignments are read back block by block: the inside of a block
depends only on the joints at its ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

import numpy as np

from autosbp.search._base import Costs, Edge, SearchProblem
from autosbp.search.solvers.cost_tables import CostTables, broadcast_to_axes, min_of_sum
from autosbp.search.solvers.elimination_order import EliminationProgram
from autosbp.search.solvers.problem_repetition import ProblemRepetition

MAX_JOINT = 96
"""Most values of a joint: a product of joint-to-joint tables takes the third power of this."""
Prices = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ProblemPart:
    """The variables ``members`` of a problem, as a problem of their own with its program."""

    problem: SearchProblem
    program: EliminationProgram
    members: tuple[int, ...] = ()


Plan = Callable[[SearchProblem, tuple[int, ...]], EliminationProgram]
"""Plans the elimination of a problem, except for the variables to keep."""


@dataclass(frozen=True)
class Chain:
    """Elimination plan for a run of equal blocks.

    ``block``: the joint of one block, then all variables of the next; both joints are kept. ``rest``: everything around
    the run, its first block, and its last joint, whose own costs are zero because they are in its block's table. The
    last edge of ``rest``, between the first and the last joint, stands for all blocks but the first."""

    repeats: ProblemRepetition
    block: ProblemPart
    rest: ProblemPart

    @property
    def is_exact(self) -> bool:
        return self.block.program.is_exact and self.rest.program.is_exact

    @property
    def rounds(self) -> int:
        return self.block.program.rounds + self.rest.program.rounds + self.repeats.count.bit_length()


def plan_chain(problem: SearchProblem, repeats: ProblemRepetition, plan: Plan) -> Chain | None:
    """The chain; None if powers of a block's table would take long, or a table would have to be split."""
    first, joint = repeats.start, repeats.joint
    inner = range(repeats.variable(1, 0), repeats.variable(2, 0))
    place = {repeats.variable(0, joint): 0, **{v: 1 + at for at, v in enumerate(inner)}}
    size = len(problem.unary_s[repeats.variable(0, joint)])
    if size > MAX_JOINT:
        return None
    nothing = np.zeros(size), np.zeros(size, dtype=np.int64)
    block = SearchProblem(
        ("joint", *problem.names[inner.start : inner.stop]),
        (nothing[0], *problem.unary_s[inner.start : inner.stop]),
        (nothing[1], *problem.memory_bytes[inner.start : inner.stop]),
        tuple(
            Edge(place[edge.u], place[edge.v], edge.table)
            for edge in problem.edges
            if edge.u in place and edge.v in place and max(place[edge.u], place[edge.v]) > 0
        ),
    )
    last = repeats.variable(repeats.count - 1, joint)
    members = (*range(first + repeats.period), last, *range(repeats.end, problem.num_variables))
    new = {v: at for at, v in enumerate(members)}
    rest = replace(
        problem,
        names=tuple(problem.names[v] for v in members),
        unary_s=tuple(nothing[0] if v == last else problem.unary_s[v] for v in members),
        memory_bytes=tuple(nothing[1] if v == last else problem.memory_bytes[v] for v in members),
        edges=(
            *(Edge(new[e.u], new[e.v], e.table) for e in problem.edges if e.u in new and e.v in new),
            Edge(new[repeats.variable(0, joint)], new[last], np.zeros((size, size))),
        ),
    )
    chain = Chain(repeats, ProblemPart(block, plan(block, (0, 1 + joint))), ProblemPart(rest, plan(rest, ()), members))
    return chain if chain.is_exact else None


Eliminate = Callable[[SearchProblem, EliminationProgram, Sequence[float]], tuple[CostTables, list[int]]]
Backtrack = Callable[[EliminationProgram, list[Costs], dict[int, int]], tuple[int, ...]]


@dataclass(slots=True)
class _Block:
    """A block at some multipliers: its joint-to-joint table, the tables it comes from, and its powers of two."""

    table: Costs
    arrays: list[Costs]
    powers: list[Costs] = field(default_factory=list)
    inside: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)


class ChainRun:
    """One elimination; ``bound_s`` and ``assignment`` are those of ``elimination.Solution``."""

    def __init__(
        self,
        chain: Chain,
        prices: Sequence[float],
        check: Callable[[], None],
        eliminate: Eliminate,
        backtrack: Backtrack,
    ) -> None:
        self.chain, self.check, self.eliminate, self.backtrack = chain, check, eliminate, backtrack
        self.distinct_products = self.operations = 0
        repeats = chain.repeats
        blocks = [
            tuple(prices[repeats.variable(at, 0) : repeats.variable(at + 1, 0)]) for at in range(1, repeats.count)
        ]
        self._known: dict[Prices, _Block] = {}
        self._blocks = [self._block(own) for own in blocks]
        rest = chain.rest
        edges = (*rest.problem.edges[:-1], replace(rest.problem.edges[-1], table=self._power()))
        own = [prices[v] for v in rest.members] if prices else []
        tables, slots = self._eliminated(replace(rest.problem, edges=edges), rest.program, own)
        self.bound_s = sum(float(tables.arrays[slots[slot]]) for slot in rest.program.constants)
        self.assignment = self._expand_assignment(
            backtrack(rest.program, [tables.arrays[table] for table in slots], {})
        )

    def _eliminated(
        self, problem: SearchProblem, program: EliminationProgram, prices: Sequence[float]
    ) -> tuple[CostTables, list[int]]:
        tables, slots = self.eliminate(problem, program, prices)
        self.distinct_products += tables.distinct_products
        self.operations += tables.operations
        return tables, slots

    def _block(self, prices: Prices) -> _Block:
        if prices not in self._known:
            part = self.chain.block
            tables, slots = self._eliminated(part.problem, part.program, (0.0, *prices) if prices else ())
            arrays = [tables.arrays[table] for table in slots]
            size = len(part.problem.unary_s[0])
            table = np.zeros((size, size)) + sum(float(arrays[slot]) for slot in part.program.constants)
            kept = {0: 0, 1 + self.chain.repeats.joint: 1}
            for slot, scope in part.program.left:
                table = table + broadcast_to_axes(arrays[slot], tuple(kept[v] for v in scope), 2)
            self._known[prices] = _Block(table, arrays, [table])
        return self._known[prices]

    def _power(self) -> Costs:
        """Table from the first block's joint to the last one's."""
        found: Costs | None = None
        for _, run in groupby(self._blocks, key=id):
            same = list(run)
            block, count, at = same[0], len(same), 0
            while count:
                if at == len(block.powers):
                    block.powers.append(self._product(block.powers[-1], block.powers[-1]))
                if count & 1:
                    found = block.powers[at] if found is None else self._product(found, block.powers[at])
                count, at = count >> 1, at + 1
        assert found is not None
        return found

    def _product(self, one: Costs, two: Costs) -> Costs:
        """Min-plus product."""
        size = len(one)
        self.distinct_products += 1
        self.operations += size**3
        rows = np.ascontiguousarray(one.T)
        return min_of_sum([rows[:, :, None], two[:, None, :]], (size, size, size), self.check)

    def _expand_assignment(self, values: tuple[int, ...]) -> tuple[int, ...]:
        """The values of all variables, given those of ``rest``."""
        repeats, members = self.chain.repeats, self.chain.rest.members
        known = dict(zip(members, values, strict=True))
        joints = self._joints(
            known[repeats.variable(0, repeats.joint)], known[repeats.variable(repeats.count - 1, repeats.joint)]
        )
        found = [*values[: repeats.start + repeats.period]]
        for block, before, behind in zip(self._blocks, joints, joints[1:], strict=False):
            if (before, behind) not in block.inside:
                given = {0: before, 1 + repeats.joint: behind}
                block.inside[before, behind] = self.backtrack(self.chain.block.program, block.arrays, given)[1:]
            found += block.inside[before, behind]
        return (*found, *(known[v] for v in members[repeats.start + repeats.period + 1 :]))

    def _joints(self, first: int, last: int) -> list[int]:
        """The values of the joints on a cheapest path between two."""
        costs = [self._blocks[0].table[first]]
        for block in self._blocks[1:]:
            costs.append((costs[-1][:, None] + block.table).min(axis=0))
        found = [last]
        for before, block in zip(costs[-2::-1], self._blocks[:0:-1], strict=True):
            found.append(int((before + block.table[:, found[-1]]).argmin()))
        return [first, *found[::-1]]
