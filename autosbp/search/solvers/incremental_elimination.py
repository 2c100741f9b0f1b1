"""Repeated elimination of one problem at different Lagrange multipliers of memory.

Everything independent of the multipliers is prepared once. Multipliers change the unary costs, and so every table that
elimination computes; edge tables stay. Eliminating a problem of few variables is mostly overhead: looking up operands,
ordering them, copying transposed tables."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from autosbp.search._base import Costs, SearchProblem
from autosbp.search.solvers.cost_tables import broadcast_to_axes
from autosbp.search.solvers.elimination import Solution, backtrack, squeezed_edge_tables
from autosbp.search.solvers.elimination_order import EliminationProgram, MinPlusGroup

Index = tuple[slice | None, ...]


@dataclass(frozen=True, slots=True)
class _Operand:
    """A table that depends on multipliers: its dims are transposed to ``order``, and ``index`` adds the missing ones."""

    slot: int
    order: tuple[int, ...]
    index: Index


@dataclass(frozen=True, slots=True)
class _Sum:
    """Elimination of a variable (the first dim): the sum of ``fixed`` and of the operands, smallest first."""

    output: int
    fixed: Costs | None
    operands: tuple[_Operand, ...]


class IncrementalElimination:
    """Eliminator for fixed edges and varying unary costs.

    Args:
        problem: gives the edges and the domain sizes.
        program: from ``plan_problem``; not a chain.
        alike: one key per variable; variables with equal keys have equal costs at every multiplier.
    """

    def __init__(self, problem: SearchProblem, program: EliminationProgram, alike: Sequence[Hashable]) -> None:
        self._program = program
        count = problem.num_variables
        first: dict[Hashable, int] = {}
        self._fixed = dict(enumerate(squeezed_edge_tables(problem, program), start=count))
        # Per slot, the slot that holds its table: equal products, such as those of equal branches, are computed once.
        self._same = [first.setdefault(each, at) for at, each in enumerate(alike)]
        self._same += [first.setdefault(("edge", id(table)), at) for at, table in self._fixed.items()]
        self._same += [-1] * (program.num_slots - len(self._same))
        self._sums: list[_Sum] = []
        made: dict[Hashable, int] = {}
        for step in program.steps:
            for group in step.groups:
                operands = [(self._same[slot], axes) for slot, axes in zip(group.slots, group.axes, strict=True)]
                known = made.setdefault((group.sizes, *sorted(operands)), group.output)
                self._same[group.output] = known
                if known == group.output:
                    self._sums.append(self._sum(group, operands))

    def _sum(self, group: MinPlusGroup, operands: Sequence[tuple[int, tuple[int, ...]]]) -> _Sum:
        rank, sizes = len(group.sizes), group.sizes
        fixed: Costs | None = None
        found: list[tuple[int, _Operand]] = []
        for slot, axes in operands:
            turned = tuple((axis + 1) % rank for axis in axes)
            if slot in self._fixed:
                table = broadcast_to_axes(self._fixed[slot], turned, rank)
                fixed = table if fixed is None else fixed + table
                continue
            index = tuple(slice(None) if axis in turned else None for axis in range(rank))
            order = tuple(sorted(range(len(turned)), key=turned.__getitem__))
            size = int(np.prod([sizes[axis] for axis in axes], dtype=np.float64))
            found.append((size, _Operand(slot, order, index)))
        found.sort(key=lambda entry: entry[0])
        return _Sum(group.output, fixed, tuple(operand for _, operand in found))

    def minimise(self, unary_s: Sequence[Costs]) -> Solution:
        """Same as ``elimination.minimise``, with these unary costs."""
        program = self._program
        tables: list[Costs] = [*unary_s, *self._fixed.values()]
        tables += [_EMPTY] * (program.num_slots - len(tables))
        for each in self._sums:
            total: Costs | None = None
            for operand in each.operands:
                table = tables[operand.slot].transpose(operand.order)[operand.index]
                total = table if total is None else total + table
            if each.fixed is not None:
                total = each.fixed if total is None else total + each.fixed
            assert total is not None
            tables[each.output] = np.minimum.reduce(total, axis=0)
        tables = [tables[slot] for slot in self._same]
        bound_s = sum(float(tables[slot]) for slot in program.constants)
        return Solution(bound_s, backtrack(program, tables, {}), len(self._sums), 0)


_EMPTY = np.zeros(0)
