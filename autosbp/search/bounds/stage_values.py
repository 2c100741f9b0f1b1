"""Values of the variables of a stage's part: what each takes, and which of them some price of memory may ask for.

A value that another one can stand for, at no more seconds with all neighbours as they are and no more bytes of any kind, is
no better at any price. Without those, all that is asked of a part is asked of a smaller problem.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from autosbp.search._base import Edge, SearchProblem
from autosbp.search.problem.domains import ValueCosts
from autosbp.search.problem.dominance import Bools, Sieve
from autosbp.search.searchers.chain import Chain
from autosbp.search.searchers.elimination import effort_of, plan_problem
from autosbp.search.searchers.order import Program

Floats = NDArray[np.float64]
Places = list[NDArray[np.intp]]


@dataclass(frozen=True, slots=True)
class Prices:
    """Seconds a byte: of what stays all the time, of gradients, and of what one microbatch keeps; and whether seconds that
    pass ``once`` a step count."""

    stays: float
    gradients: float
    kept: float
    once: bool = True


@dataclass(frozen=True)
class Columns:
    """Of a variable: per value the seconds of all ``passes``, and the bytes kept of one microbatch; per way to store its
    parameters and value, the seconds that come with every microbatch, those once a step, the bytes that stay, and those of
    gradients."""

    passes: Floats
    kept: Floats
    often: Floats
    once: Floats
    stays: Floats
    gradients: Floats

    @classmethod
    def of(cls, part: ValueCosts) -> Columns:
        if not part.stored:
            none = np.zeros((1, len(part.kept)))
            return cls(part.seconds, part.kept, none, none, none, none)
        seconds, memory, gradients, often = (
            np.stack([getattr(way, name) for way in part.stored])
            for name in ("seconds", "memory", "gradients", "often")
        )
        return cls(part.seconds - seconds[0], part.kept, often, seconds - often, memory - gradients, gradients)

    def cut(self, mask: Bools) -> Columns:
        """Some of the values."""
        return Columns(*(getattr(self, each.name)[..., mask] for each in fields(self)))

    def priced(self, prices: Prices) -> tuple[Floats, NDArray[np.intp]]:
        """Of each value, the least of all ways to store its parameters, and which that is."""
        stored = self.often + prices.stays * self.stays + prices.gradients * self.gradients
        if prices.once:
            stored = stored + self.once
        return self.passes + prices.kept * self.kept + stored.min(axis=0), stored.argmin(axis=0)


@dataclass(frozen=True)
class Asked:
    """A part over the values that some price may ask for. ``work`` are additions of an elimination, ``switches`` what each
    value pays to stand for another, None of copies."""

    problem: SearchProblem
    columns: list[Columns]
    switches: list[Floats | None]
    program: Program | Chain
    work: float


def asked(problem: SearchProblem, columns: Sequence[Columns], switches: Sequence[Floats | None]) -> Asked:
    """Without values that others stand for, and without copies in layouts that nobody wants any more; without ``switches``
    with all of them."""
    if not switches:
        program = plan_problem(problem)
        return Asked(problem, list(columns), [], program, effort_of(problem, program).additions)
    masks: dict[bytes, Bools] = {}  # equal ones are one object, as tables have to be
    kept = [
        np.ones(len(own.kept), dtype=bool) if switch is None else _unmatched(own, switch)
        for own, switch in zip(columns, switches, strict=True)
    ]
    for edge in problem.edges:
        for own, other, table in ((edge.u, edge.v, edge.table), (edge.v, edge.u, edge.table.T)):
            if switches[own] is None:
                kept[own] = kept[own] & np.isfinite(table[:, kept[other]]).any(axis=1)
    kept = [masks.setdefault(mask.tobytes(), mask) for mask in kept]
    smaller = Sieve().smaller(problem, kept)
    cut: dict[tuple[int, int], Columns] = {}
    for each, mask in zip(columns, kept, strict=True):
        if (id(each), id(mask)) not in cut:
            cut[id(each), id(mask)] = each.cut(mask)
    program = plan_problem(smaller)
    return Asked(
        smaller,
        [cut[id(each), id(mask)] for each, mask in zip(columns, kept, strict=True)],
        [None if switch is None else switch[np.ix_(mask, mask)] for switch, mask in zip(switches, kept, strict=True)],
        program,
        effort_of(smaller, program).additions,
    )


def _unmatched(own: Columns, switch: Floats) -> Bools:
    """Values that no other one stands for at no more seconds, with and without what is once a step, and no more bytes; of
    equal ones the first."""
    matched = (own.kept[None, :] <= own.kept[:, None]) & (switch + own.passes <= own.passes[:, None])
    for often, once, stays, gradients in zip(own.often, own.once, own.stays, own.gradients, strict=True):
        for seconds in (own.passes + often, own.passes + often + once):
            matched &= switch + seconds <= seconds[:, None]
        matched &= (stays <= stays[:, None]) & (gradients <= gradients[:, None])
    alike = matched & matched.T & np.tri(len(switch), dtype=bool).T
    found: Bools = ~(matched & ~alike).any(axis=1)
    return found


def without_dominated(problem: SearchProblem, switches: Sequence[Floats | None]) -> tuple[SearchProblem, Places]:
    """The problem without values that no other one replaces for less (``search._dominance``), and those that are left."""
    left = [
        np.arange(len(own)) if switch is None else _undominated(own, switch)
        for own, switch in zip(problem.unary_s, switches, strict=True)
    ]
    for edge in problem.edges:  # copies in layouts that nobody wants any more
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
    """Values that no other one replaces for less (``search._dominance``)."""
    return np.flatnonzero((switch + own[None, :]).min(axis=1) >= own - 1e-12 * np.abs(own))
