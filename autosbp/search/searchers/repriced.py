"""Eliminations of one problem at one price after another: what prices do not change is laid out and added up once.

Prices change what values cost by themselves, and so every table that elimination makes; edges' tables stay. A problem of
few variables is mostly overhead to eliminate: names of operands, their order, copies of tables the other way round.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from autosbp.search._base import Costs, SearchProblem
from autosbp.search.searchers.elimination import Solution, backtrack, narrow
from autosbp.search.searchers.order import Group, Program
from autosbp.search.searchers.tables import aligned

Index = tuple[slice | None, ...]


@dataclass(frozen=True, slots=True)
class _Operand:
    """A table that prices change: its dims are taken in ``order``, and ``index`` adds those that it lacks."""

    slot: int
    order: tuple[int, ...]
    index: Index


@dataclass(frozen=True, slots=True)
class _Sum:
    """The elimination of a variable, the first dim: the sum of ``fixed`` and of operands, the smallest first."""

    output: int
    fixed: Costs | None
    operands: tuple[_Operand, ...]


class Repriced:
    """See the module's docstring.

    Args:
        problem: whose edges are taken, and the sizes of its domains.
        program: of ``plan_problem``, no chain.
        alike: of each variable what tells its costs from others': of equal ones they are equal at every price.
    """

    def __init__(self, problem: SearchProblem, program: Program, alike: Sequence[Hashable]) -> None:
        self._program = program
        count = problem.num_variables
        first: dict[Hashable, int] = {}
        self._fixed = dict(enumerate(narrow(problem, program), start=count))
        # Of each slot the one whose table it has: equal products, as those of alike branches, are made once.
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

    def _sum(self, group: Group, operands: Sequence[tuple[int, tuple[int, ...]]]) -> _Sum:
        rank, sizes = len(group.sizes), group.sizes
        fixed: Costs | None = None
        found: list[tuple[int, _Operand]] = []
        for slot, axes in operands:
            turned = tuple((axis + 1) % rank for axis in axes)
            if slot in self._fixed:
                table = aligned(self._fixed[slot], turned, rank)
                fixed = table if fixed is None else fixed + table
                continue
            index = tuple(slice(None) if axis in turned else None for axis in range(rank))
            order = tuple(sorted(range(len(turned)), key=turned.__getitem__))
            size = int(np.prod([sizes[axis] for axis in axes], dtype=np.float64))
            found.append((size, _Operand(slot, order, index)))
        found.sort(key=lambda entry: entry[0])
        return _Sum(group.output, fixed, tuple(operand for _, operand in found))

    def minimise(self, unary_s: Sequence[Costs]) -> Solution:
        """As ``elimination.minimise``, with these costs of values."""
        program = self._program
        tables: list[Costs] = [*unary_s, *self._fixed.values()]
        tables += [_NOTHING] * (program.num_slots - len(tables))
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


_NOTHING = np.zeros(0)
