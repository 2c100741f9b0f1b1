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
from autosbp.search.bounds.stage_values import Asked, Columns, Prices, asked, without_dominated
from autosbp.search.problem.build import BuiltProblem
from autosbp.search.searchers.chain import Chain
from autosbp.search.searchers.elimination import Solution, effort_of, minimise, plan_problem
from autosbp.search.searchers.repriced import Repriced

Floats = NDArray[np.float64]
LEAN = 1e6
"""Times what a quick layout takes in seconds is what it pays for its bytes where nothing but bytes counts."""
MUCH_WORK, MOST_WORK = 1e6, 3e8
"""Additions of an elimination from which on it is quicker to leave dominated values out before it; and which are too many to
be made at every price."""


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
        self._built, self._inner, self._parts = built, inner, parts
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
        self._passing = tuple(edge for edge in self.problem.edges if not {edge.u, edge.v} & copies)
        work = effort_of(self.problem, plan_problem(self.problem)).additions
        self.is_large, self.is_huge = work > MUCH_WORK, work > MOST_WORK
        self.count = count
        self.forward_s = sum(part.forward_s for part in parts)
        self.backward_s = sum(part.backward_s for part in parts)
        self.lean_s = self.backward_s - sum(part.put_off_s for part in parts)
        self.least_kept = sum(float(part.kept.min()) for part in parts)
        self._at: dict[Prices, Priced] = {}
        self._known: dict[bool, list[Priced]] = {False: [], True: []}

    @cached_property
    def _columns(self) -> list[Columns]:
        columns = {id(part): Columns.of(part) for part in self._parts}
        return [columns[id(part)] for part in self._parts]

    @cached_property
    def _switches(self) -> list[Floats | None]:
        """Of clusters, what each value pays, row by column, to stand for another with all neighbours as they are; None of
        copies."""
        detail, count = self._built.detail, len(self._built.clusters)
        assert detail is not None
        return [
            sum((port.switch_s() for port in detail.ports.get(v, ())), np.zeros((len(part.seconds),) * 2))
            if v < count else None
            for v, part in zip(self._inner, self._parts, strict=True)
        ]  # fmt: skip

    @cached_property
    def _asked(self) -> Asked:
        """What some price may ask for; of a small part all, as finding out takes longer than it saves."""
        return asked(self.problem, self._columns, self._switches if self.is_large else [])

    @cached_property
    def shortest_s(self) -> float:
        """The least seconds of one microbatch, without what is once a step."""
        problem = replace(self.problem, unary_s=tuple(each.passes for each in self._columns), edges=self._passing)
        return self._minimised(problem, self._switches if self.is_large else []).bound_s / self.count

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
        for each in self._asked.columns:
            if id(each) not in known:
                known[id(each)] = each.priced(prices)
            chosen.append(known[id(each)])
        solution = self._solve(tuple(priced for priced, _ in chosen))
        stays = gradients = kept = 0.0
        for each, (_, ways), value in zip(self._asked.columns, chosen, solution.assignment, strict=True):
            way = int(ways[value])
            stays += float(each.stays[way, value])
            gradients += float(each.gradients[way, value])
            kept += float(each.kept[value])
        paid = prices.stays * stays + prices.gradients * gradients + prices.kept * kept
        return Priced(solution.bound_s, solution.bound_s - paid, stays, gradients, kept)

    @cached_property
    def _repriced(self) -> Repriced | None:
        """Of what is quick to eliminate at every price."""
        found = self._asked
        if found.work > MUCH_WORK or isinstance(found.program, Chain):
            return None
        return Repriced(found.problem, found.program, list(map(id, found.columns)))

    def _solve(self, priced_s: tuple[Floats, ...]) -> Solution:
        if self._repriced is not None:
            return self._repriced.minimise(priced_s)
        problem = replace(self._asked.problem, unary_s=priced_s)
        if self._asked.work > MUCH_WORK:
            return self._minimised(problem, self._asked.switches)
        return minimise(problem, self._asked.program, _go_on)

    @staticmethod
    def _minimised(problem: SearchProblem, switches: Sequence[Floats | None]) -> Solution:
        """Without values that others replace for less, where these are told."""
        if not switches:
            return minimise(problem, plan_problem(problem), _go_on)
        smaller, left = without_dominated(problem, switches)
        solution = minimise(smaller, plan_problem(smaller), _go_on)
        lifted = tuple(int(kept[value]) for kept, value in zip(left, solution.assignment, strict=True))
        return replace(solution, assignment=lifted)


def _go_on() -> None:
    """Prices are found at once; nothing interrupts them."""
