"""Costs of the variables of a stage's part, and the values that are optimal at some Lagrange multiplier of memory.

A value is dominated if another can replace it at no more seconds, with all neighbours unchanged, and no more bytes of
any kind. Dominated values are not better at any multiplier, so these problems are solved without them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from autosbp.search._base import Edge, SearchProblem
from autosbp.search.problem.domains import ValueCosts
from autosbp.search.problem.dominance import Bools, DominanceFilter
from autosbp.search.solvers.elimination import effort_of, plan_problem
from autosbp.search.solvers.elimination_order import EliminationProgram
from autosbp.search.solvers.repeated_chain import Chain

Floats = NDArray[np.float64]
Places = list[NDArray[np.intp]]


@dataclass(frozen=True, slots=True)
class MemoryMultipliers:
    """Lagrange multipliers of memory, in seconds a byte.

    Of permanent state (``stays``), of gradients, and of activations saved per microbatch (``kept``). ``once``: whether
    once-a-step seconds count."""

    stays: float
    gradients: float
    kept: float
    once: bool = True


@dataclass(frozen=True)
class ValueColumns:
    """Costs of a variable's values.

    ``passes`` [value]: seconds of all passes. ``kept`` [value]: bytes saved per microbatch. Per parameter sharding,
    [sharding, value]: ``often``, seconds that come with every microbatch; ``once``, seconds once a step; ``stays``,
    bytes of permanent state; ``gradients``, bytes of gradients."""

    passes: Floats
    kept: Floats
    often: Floats
    once: Floats
    stays: Floats
    gradients: Floats

    @classmethod
    def of(cls, part: ValueCosts) -> ValueColumns:
        if not part.stored:
            none = np.zeros((1, len(part.kept)))
            return cls(part.seconds, part.kept, none, none, none, none)
        seconds, memory, gradients, often = (
            np.stack([getattr(way, name) for way in part.stored])
            for name in ("seconds", "memory", "gradients", "often")
        )
        return cls(part.seconds - seconds[0], part.kept, often, seconds - often, memory - gradients, gradients)

    def cut(self, mask: Bools) -> ValueColumns:
        """The columns of the values in ``mask``."""
        return ValueColumns(*(getattr(self, each.name)[..., mask] for each in fields(self)))

    def priced(self, prices: MemoryMultipliers) -> tuple[Floats, NDArray[np.intp]]:
        """Priced seconds [value] with the best parameter sharding, and the index of that sharding."""
        stored = self.often + prices.stays * self.stays + prices.gradients * self.gradients
        if prices.once:
            stored = stored + self.once
        return self.passes + prices.kept * self.kept + stored.min(axis=0), stored.argmin(axis=0)


@dataclass(frozen=True)
class PenalisedSubproblem:
    """A part restricted to values that can be optimal at some multiplier.

    ``switches``: [i, j] seconds that value j pays to replace value i; None for copies. ``work``: additions of an
    elimination."""

    problem: SearchProblem
    columns: list[ValueColumns]
    switches: list[Floats | None]
    program: EliminationProgram | Chain
    work: float


def undominated_subproblem(
    problem: SearchProblem, columns: Sequence[ValueColumns], switches: Sequence[Floats | None]
) -> PenalisedSubproblem:
    """The part without dominated values, and without copies in layouts that no value wants any more.

    Without ``switches``, all values stay."""
    if not switches:
        program = plan_problem(problem)
        return PenalisedSubproblem(problem, list(columns), [], program, effort_of(problem, program).additions)
    masks: dict[bytes, Bools] = {}  # equal masks are one object, as shared tables require
    kept = [
        np.ones(len(own.kept), dtype=bool) if switch is None else _undominated_at_any_multiplier(own, switch)
        for own, switch in zip(columns, switches, strict=True)
    ]
    for edge in problem.edges:
        for own, other, table in ((edge.u, edge.v, edge.table), (edge.v, edge.u, edge.table.T)):
            if switches[own] is None:
                kept[own] = kept[own] & np.isfinite(table[:, kept[other]]).any(axis=1)
    kept = [masks.setdefault(mask.tobytes(), mask) for mask in kept]
    smaller = DominanceFilter().reduce(problem, kept)
    cut: dict[tuple[int, int], ValueColumns] = {}
    for each, mask in zip(columns, kept, strict=True):
        if (id(each), id(mask)) not in cut:
            cut[id(each), id(mask)] = each.cut(mask)
    program = plan_problem(smaller)
    return PenalisedSubproblem(
        smaller,
        [cut[id(each), id(mask)] for each, mask in zip(columns, kept, strict=True)],
        [None if switch is None else switch[np.ix_(mask, mask)] for switch, mask in zip(switches, kept, strict=True)],
        program,
        effort_of(smaller, program).additions,
    )


def _undominated_at_any_multiplier(own: ValueColumns, switch: Floats) -> Bools:
    """Values that no other value replaces at no more seconds, with and without once-a-step work, and no more bytes.

    Of equal values the first one stays."""
    matched = (own.kept[None, :] <= own.kept[:, None]) & (switch + own.passes <= own.passes[:, None])
    for often, once, stays, gradients in zip(own.often, own.once, own.stays, own.gradients, strict=True):
        for seconds in (own.passes + often, own.passes + often + once):
            matched &= switch + seconds <= seconds[:, None]
        matched &= (stays <= stays[:, None]) & (gradients <= gradients[:, None])
    alike = matched & matched.T & np.tri(len(switch), dtype=bool).T
    found: Bools = ~(matched & ~alike).any(axis=1)
    return found


def without_dominated(problem: SearchProblem, switches: Sequence[Floats | None]) -> tuple[SearchProblem, Places]:
    """The problem without dominated values (``problem.dominance``), and the indices of the values left."""
    left = [
        np.arange(len(own)) if switch is None else _undominated(own, switch)
        for own, switch in zip(problem.unary_s, switches, strict=True)
    ]
    for edge in problem.edges:  # copies in layouts that no value wants any more
        for one, other, table in ((edge.u, edge.v, edge.table), (edge.v, edge.u, edge.table.T)):
            if switches[one] is None:
                wanted = np.isfinite(table[np.ix_(left[one], left[other])]).any(axis=1)
                left[one] = left[one][wanted]
    smaller = replace(
        problem,
        unary_s=tuple(own[kept] for own, kept in zip(problem.unary_s, left, strict=True)),
        memory_bytes=tuple(use[kept] for use, kept in zip(problem.memory_bytes, left, strict=True)),
        edges=tuple(
            Edge(edge.u, edge.v, np.ascontiguousarray(edge.table[np.ix_(left[edge.u], left[edge.v])]))
            for edge in problem.edges
        ),
    )
    return smaller, left


def _undominated(own: Floats, switch: Floats) -> NDArray[np.intp]:
    """Indices of the values that no other value replaces at lower cost (``problem.dominance``)."""
    return np.flatnonzero((switch + own[None, :]).min(axis=1) >= own - 1e-12 * np.abs(own))
