"""What stages pay for the parts of a folded model, at any price of memory: one repeated block, what comes before, and behind.

Each part is a small problem of its own, free to choose what it is handed and hands on, and how every parameter is stored,
whose optimum no stage goes below that holds the part. Seconds are those of all microbatches of a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from autosbp.search._base import Edge, SearchProblem
from autosbp.search._build import BuiltProblem, Detail
from autosbp.search._domains import ValueCosts
from autosbp.search._elimination import Solution, effort_of, minimise, plan_problem

Floats = NDArray[np.float64]
LEAN = 1e6
"""Times what a quick layout takes in seconds is what it pays for its bytes where nothing but bytes counts."""
MUCH_WORK, MOST_WORK = 1e6, 3e8
"""Additions of an elimination from which on it is quicker to leave dominated values out before it; and which are too many to
be made at every price."""


@dataclass(frozen=True, slots=True)
class Prices:
    """Seconds a byte: of what stays all the time, of gradients, and of what one microbatch keeps; and whether seconds that
    pass ``once`` a step count."""

    stays: float
    gradients: float
    kept: float
    once: bool = True


@dataclass(frozen=True, slots=True)
class Priced:
    """The least priced seconds of a part; and seconds, bytes that stay, of gradients, and kept of a microbatch, where it is."""

    least_s: float
    seconds: float
    stays: float
    gradients: float
    kept: float


class Part:
    """Some variables of a problem with its ``detail``; ``count`` microbatches are a step."""

    def __init__(self, built: BuiltProblem, inner: Sequence[int], count: int) -> None:
        assert built.detail is not None
        new = {variable: at for at, variable in enumerate(inner)}
        whole, parts = built.problem, [built.detail.parts[v] for v in inner]
        columns = {id(part): _Columns.of(part) for part in parts}
        self.columns = [columns[id(part)] for part in parts]
        self._built, self._inner = built, inner
        self.problem = SearchProblem(
            tuple(whole.names[v] for v in inner),
            tuple(part.seconds for part in parts),
            tuple(part.memory for part in parts),
            tuple(
                Edge(new[edge.u], new[edge.v], edge.table) for edge in whole.edges if edge.u in new and edge.v in new
            ),
        )
        # Stored layouts of parameters, and their copies, cost once a step.
        stored = {variable for variable, _ in built.parameter_variables.values()}
        near = {end for edge in whole.edges if {edge.u, edge.v} & stored for end in (edge.u, edge.v)}
        copies = {new[v] for v in near | stored if v in new and v >= len(built.clusters)}
        self.passing = tuple(edge for edge in self.problem.edges if not {edge.u, edge.v} & copies)
        self.program = plan_problem(self.problem)
        work = effort_of(self.problem, self.program).additions
        self.is_large, self.is_huge = work > MUCH_WORK, work > MOST_WORK
        self.count = count
        self.forward_s = sum(part.forward_s for part in parts)
        self.backward_s = sum(part.backward_s for part in parts)
        self.lean_s = self.backward_s - sum(part.put_off_s for part in parts)
        self.least_kept = sum(float(part.kept.min()) for part in parts)
        self._at: dict[Prices, Priced] = {}
        self._known: dict[bool, list[Priced]] = {False: [], True: []}

    @cached_property
    def switches(self) -> list[Floats | None]:
        """Of clusters, what each value pays to stand for another; None of copies."""
        assert self._built.detail is not None
        detail, count = self._built.detail, len(self._built.clusters)
        return [self._switch(detail, variable) if variable < count else None for variable in self._inner]

    def _switch(self, detail: Detail, variable: int) -> Floats:
        """What each value pays, row by column, to stand for another with all neighbours as they are."""
        size = len(detail.parts[variable].seconds)
        return sum((port.switch_s() for port in detail.ports.get(variable, ())), np.zeros((size, size)))

    @cached_property
    def shortest_s(self) -> float:
        """The least seconds of one microbatch, without what is once a step."""
        return self._minimised(tuple(each.passes for each in self.columns), self.passing).bound_s / self.count

    def known(self, *, once: bool) -> list[Priced]:
        """What prices have led to with ``once``, or without: at first a quick layout, and one that takes few bytes."""
        found = self._known[once]
        if not found:
            quick = self.at(Prices(0.0, 0.0, 0.0, once))
            price = LEAN * quick.seconds / max(quick.stays + quick.kept, 1.0)
            self.at(Prices(price, price, price, once))
        return found

    def at(self, prices: Prices) -> Priced:
        """The least of all layouts."""
        if prices not in self._at:
            self._at[prices] = self._priced(prices)
            self._known[prices.once].append(self._at[prices])
        return self._at[prices]

    def _priced(self, prices: Prices) -> Priced:
        known: dict[int, tuple[Floats, NDArray[np.intp]]] = {}
        chosen = []
        for each in self.columns:
            if id(each) not in known:
                known[id(each)] = each.priced(prices)
            chosen.append(known[id(each)])
        solution = self._minimised(tuple(priced for priced, _ in chosen), self.problem.edges)
        stays = gradients = kept = 0.0
        for each, (_, ways), value in zip(self.columns, chosen, solution.assignment, strict=True):
            way = int(ways[value])
            stays += float(each.stays[way, value])
            gradients += float(each.gradients[way, value])
            kept += float(each.kept[value])
        paid = prices.stays * stays + prices.gradients * gradients + prices.kept * kept
        return Priced(solution.bound_s, solution.bound_s - paid, stays, gradients, kept)

    def _minimised(self, unary_s: tuple[Floats, ...], edges: tuple[Edge, ...]) -> Solution:
        problem = replace(self.problem, unary_s=unary_s, edges=edges)
        if not self.is_large:
            program = self.program if edges is self.problem.edges else plan_problem(problem)
            return minimise(problem, program, _go_on)
        left = [
            np.arange(len(own)) if switch is None else _undominated(own, switch)
            for own, switch in zip(unary_s, self.switches, strict=True)
        ]
        for edge in edges:  # copies in layouts that nobody wants any more
            for own, other, table in ((edge.u, edge.v, edge.table), (edge.v, edge.u, edge.table.T)):
                if self.switches[own] is None:
                    wanted = np.isfinite(table[np.ix_(left[own], left[other])]).any(axis=1)
                    left[own] = left[own][wanted]
        smaller = replace(
            problem,
            unary_s=tuple(own[kept] for own, kept in zip(unary_s, left, strict=True)),
            memory_bytes=tuple(use[kept] for use, kept in zip(problem.memory_bytes, left, strict=True)),
            edges=tuple(
                Edge(edge.u, edge.v, np.ascontiguousarray(edge.table[np.ix_(left[edge.u], left[edge.v])]))
                for edge in edges
            ),
        )
        solution = minimise(smaller, plan_problem(smaller), _go_on)
        lifted = tuple(int(kept[value]) for kept, value in zip(left, solution.assignment, strict=True))
        return replace(solution, assignment=lifted)


@dataclass(frozen=True)
class _Columns:
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
    def of(cls, part: ValueCosts) -> _Columns:
        if not part.stored:
            none = np.zeros((1, len(part.kept)))
            return cls(part.seconds, part.kept, none, none, none, none)
        seconds, memory, gradients, often = (
            np.stack([getattr(way, name) for way in part.stored])
            for name in ("seconds", "memory", "gradients", "often")
        )
        return cls(part.seconds - seconds[0], part.kept, often, seconds - often, memory - gradients, gradients)

    def priced(self, prices: Prices) -> tuple[Floats, NDArray[np.intp]]:
        """Of each value, the least of all ways to store its parameters, and which that is."""
        stored = self.often + prices.stays * self.stays + prices.gradients * self.gradients
        if prices.once:
            stored = stored + self.once
        return self.passes + prices.kept * self.kept + stored.min(axis=0), stored.argmin(axis=0)


def _undominated(own: Floats, switch: Floats) -> NDArray[np.intp]:
    """Values that no other one replaces for less (``search._dominance``)."""
    return np.flatnonzero((switch + own[None, :]).min(axis=1) >= own - 1e-12 * np.abs(own))


def _go_on() -> None:
    """Prices are found at once; nothing interrupts them."""
