"""Variable elimination with min-plus products: the optimum of a problem without its memory limit."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autosbp.search._base import Costs, SearchProblem
from autosbp.search.solvers.cost_tables import CostTables
from autosbp.search.solvers.elimination_order import MAX_TABLE_ENTRIES, EliminationProgram, plan_elimination
from autosbp.search.solvers.problem_repetition import find_repeats
from autosbp.search.solvers.repeated_chain import Chain, ChainRun, plan_chain


@dataclass(frozen=True, slots=True)
class Solution:
    """Result of an elimination.

    ``bound_s`` is the optimum without ``fixed_s``; if the program is not exact, a lower bound of it."""

    bound_s: float
    assignment: tuple[int, ...]
    distinct_products: int
    operations: int


@dataclass(frozen=True, slots=True)
class MinMarginals:
    """Per value of one variable, the least cost of all assignments with that value, without ``fixed_s``.

    If the program is not exact, a lower bound of that. ``program`` and ``arrays`` (the tables of its slots) give the
    assignments."""

    least_s: Costs
    variable: int
    program: EliminationProgram
    arrays: list[Costs]

    def assignment(self, value: int) -> tuple[int, ...]:
        """A cheapest assignment with the value; it may cost more if the program is not exact."""
        return backtrack(self.program, self.arrays, {self.variable: value})


def plan_problem(problem: SearchProblem, max_entries: int = MAX_TABLE_ENTRIES) -> EliminationProgram | Chain:
    """The program for ``minimise``; a chain if equal blocks make up most of the problem."""
    repeats = find_repeats(problem) if max_entries == MAX_TABLE_ENTRIES else None
    chain = None if repeats is None else plan_chain(problem, repeats, lambda part, kept: _plan_program(part, kept=kept))
    return chain or _plan_program(problem, max_entries)


def _plan_program(
    problem: SearchProblem,
    max_entries: int = MAX_TABLE_ENTRIES,
    last: int | None = None,
    kept: tuple[int, ...] = (),
) -> EliminationProgram:
    """Slots 0..n-1 are the unary costs, then come the edges, without variables of a single value, which couple nothing."""
    single = _single(problem, kept)
    scopes: list[tuple[int, ...]] = [(i,) for i in range(problem.num_variables)]
    scopes += [tuple(v for v in (edge.u, edge.v) if v not in single) for edge in problem.edges]
    return plan_elimination([len(costs) for costs in problem.unary_s], scopes, max_entries, last, kept)


def _single(problem: SearchProblem, kept: Collection[int]) -> frozenset[int]:
    """Variables of a single value, except for those that are kept."""
    return frozenset(i for i, costs in enumerate(problem.unary_s) if len(costs) == 1 and i not in kept)


@dataclass(frozen=True, slots=True)
class EliminationCost:
    """Additions of an elimination, and entries of the tables that it keeps for reading the assignment back."""

    additions: float
    entries: float


def effort_of(problem: SearchProblem, program: EliminationProgram | Chain) -> EliminationCost:
    """Effort of an elimination. Equal products, such as those of repeated blocks, are computed and kept once."""
    if isinstance(program, Chain):
        parts = [effort_of(part.problem, part.program) for part in (program.block, program.rest)]
        size = float(len(program.block.problem.unary_s[0]))
        powers = 2 * program.repeats.count.bit_length()
        return EliminationCost(
            sum(part.additions for part in parts) + powers * size**3,
            sum(part.entries for part in parts) + powers * size**2,
        )
    slots: list[Hashable] = [
        (id(costs), id(use)) for costs, use in zip(problem.unary_s, problem.memory_bytes, strict=True)
    ]
    slots.extend(id(edge.table) for edge in problem.edges)
    slots.extend([None] * (program.num_slots - len(slots)))
    known: dict[Hashable, int] = {}
    additions = entries = 0.0
    for step in program.steps:
        for group in step.groups:
            key = (
                group.sizes,
                *sorted((str(slots[slot]), axes) for slot, axes in zip(group.slots, group.axes, strict=True)),
            )
            if key not in known:
                known[key] = -1 - len(known)
                additions += math.prod(map(float, group.sizes))
                entries += math.prod(map(float, group.sizes[:-1]))
            slots[group.output] = known[key]
    return EliminationCost(additions, entries)


def minimise(
    problem: SearchProblem,
    program: EliminationProgram | Chain,
    check: Callable[[], None],
    prices_s_per_byte: Sequence[float] = (),
) -> Solution:
    """Least ``sum of unary_s + price * memory_bytes + edges`` over all assignments, without the memory limit.

    Args:
        problem: its arrays are compared by identity; equal content should be one object (``ArrayInterner``).
        program: from ``plan_problem``, for a problem with the same domains and edges.
        check: called often; may raise to abandon the work.
        prices_s_per_byte: one per variable; all 0 if empty.

    Returns:
        An assignment that attains the optimum (the lowest value first among ties). ``bound_s`` is inf if every
        assignment is forbidden.
    """
    if isinstance(program, Chain):
        run = ChainRun(
            program, prices_s_per_byte, check,
            lambda part, own, prices: _eliminated(part, own, check, prices), backtrack,
        )  # fmt: skip
        return Solution(run.bound_s, run.assignment, run.distinct_products, run.operations)
    tables, slots = _eliminated(problem, program, check, prices_s_per_byte)
    bound = sum(float(tables.arrays[slots[slot]]) for slot in program.constants)
    assignment = backtrack(program, [tables.arrays[table] for table in slots], {})
    return Solution(bound, assignment, tables.distinct_products, tables.operations)


def min_marginals(problem: SearchProblem, variable: int, check: Callable[[], None]) -> MinMarginals:
    """Min-marginals of all values of a variable, by one elimination that leaves it to the last; without the memory limit.

    Entries are inf if every assignment with the value is forbidden; its assignment means nothing then."""
    program = _plan_program(problem, last=variable)
    tables, slots = _eliminated(problem, program, check, ())
    own = program.steps[-1].groups
    behind = {group.output for group in own}
    rest = sum(float(tables.arrays[slots[slot]]) for slot in program.constants if slot not in behind)
    least = np.full(len(problem.unary_s[variable]), rest)
    for group in own:
        for slot in group.slots:
            least = least + tables.arrays[slots[slot]]
    return MinMarginals(least, variable, program, [tables.arrays[table] for table in slots])


def _eliminated(
    problem: SearchProblem, program: EliminationProgram, check: Callable[[], None], prices_s_per_byte: Sequence[float]
) -> tuple[CostTables, list[int]]:
    """The tables of the elimination, and the table id of every slot of the program."""
    tables = CostTables(check)
    priced: dict[tuple[int, int, float], Costs] = {}
    slots: list[int] = []
    prices = prices_s_per_byte or [0.0] * problem.num_variables
    for costs, use, price in zip(problem.unary_s, problem.memory_bytes, prices, strict=True):
        key = (id(costs), id(use), price)
        if key not in priced:
            priced[key] = costs + price * use if price else costs
        slots.append(tables.intern(priced[key]))
    slots.extend(map(tables.intern, squeezed_edge_tables(problem, program)))
    slots.extend([-1] * (program.num_slots - len(slots)))
    for step in program.steps:
        check()
        for group in step.groups:
            operands = [(slots[slot], axes) for slot, axes in zip(group.slots, group.axes, strict=True)]
            slots[group.output] = tables.eliminate(operands, group.sizes)
    return tables, slots


def squeezed_edge_tables(problem: SearchProblem, program: EliminationProgram) -> Iterator[Costs]:
    """The edges' tables without dims of a single value; equal objects stay one."""
    single = _single(problem, program.kept)
    known: dict[tuple[int, bool, bool], Costs] = {}
    for edge in problem.edges:
        alone = edge.u in single, edge.v in single
        if (id(edge.table), *alone) not in known:
            shape = [size for size, one in zip(edge.table.shape, alone, strict=True) if not one]
            known[id(edge.table), *alone] = edge.table.reshape(shape) if any(alone) else edge.table
        yield known[id(edge.table), *alone]


def backtrack(program: EliminationProgram, tables: list[Costs], given: Mapping[int, int]) -> tuple[int, ...]:
    """Values in reverse elimination order, each the best given its neighbours' values so far, or as ``given``."""
    values = [given.get(variable, 0) for variable in range(program.num_variables)]
    for step in reversed(program.steps):
        if step.variable in given:
            continue
        costs = np.zeros(step.groups[0].sizes[-1])
        for group in step.groups:
            last = len(group.scope)
            for slot, axes in zip(group.slots, group.axes, strict=True):
                index = tuple(slice(None) if axis == last else values[group.scope[axis]] for axis in axes)
                costs += tables[slot][index]
        values[step.variable] = int(np.argmin(costs))
    return tuple(values)
