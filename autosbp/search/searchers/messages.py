"""Tree-reweighted message passing in sequence (TRW-S; Kolmogorov 2006): a bound, and assignments that often attain it.

Costs move between variables and edges without a change of any assignment's sum, until the least entries of all add up to
nearly the optimum. That takes a few passes over the edges where elimination would need tables over many variables at once:
a value that every layer reads, as an encoder's output, is no hindrance. Where bound and assignment meet the optimum is
proved; where they do not, the bound says of most values that no better assignment holds them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autosbp.search._base import Costs, SearchProblem
from autosbp.search.searchers.loops import kernels
from autosbp.search.searchers.memory import Meet, line, sum_below
from autosbp.search.searchers.message_passes import MessagePasses, can_pass, shares
from autosbp.search.searchers.run import magnitude

Shifts = list[tuple[Costs, Costs]]
"""Of each edge, what its table gains by the value of each end, which these ends lose: so that the least entries of all
variables and edges add up to a bound."""
GRAIN = 2.0**-56
"""Messages are rounded down to multiples of this part of all costs: what loses by it is a bound, far less than any proof minds;
what gains is that repeated blocks send equal messages, which are made once."""
MAX_KNOWN = 1 << 14
SLACK = 1e-9
"""Relative; wider than any rounding."""
ROUNDING = 1e-11
MAX_SWEEPS, SWEEPS_A_PRICE = 40, 6
STALLED, FAR = 0.01, 0.02
"""Of the gap: a sweep that raises the bound by less is the last, unless it finds something better; and of the bound: what is
known and further above says nothing of how near the bound is to the optimum."""
MAX_PRICES, NEAR = 16, 1.02


@dataclass(frozen=True, slots=True, eq=False)
class Arc:
    """An edge as one of its variables sees it: ``table[own value, other's value]``. ``into`` is where messages to the variable
    lie, ``out`` those to the other one; ``known`` tells equal tables."""

    other: int
    table: Costs
    known: int
    into: int
    out: int


class Messages:
    """``sweep`` raises ``bound_s``, of the costs with ``prices`` on memory, one a variable; the bound leaves ``fixed_s`` out.

    Args:
        problem: at most one edge joins a pair, from the lower variable to the higher; equal arrays are one object.
        check: called often; may raise to abandon the work.
    """

    def __init__(self, problem: SearchProblem, check: Callable[[], None]) -> None:
        self.problem, self._check = problem, check
        self.bound_s = -np.inf
        self.shifts: Shifts = []
        self._forbidden = 2.0 * sum(map(_spread(), (*problem.unary_s, *(e.table for e in problem.edges)))) or 1.0
        self._grain = GRAIN * self._forbidden
        self._finite: dict[tuple[int, bool], Costs] = {}
        self._excess: list[Costs] = []
        self._base_s = -np.inf
        self.prices: Sequence[float] = [0.0] * problem.num_variables
        self._passes = MessagePasses(problem, self._filled, check) if can_pass(problem) else None
        if self._passes is not None:
            return
        ends = np.array([(edge.u, edge.v) for edge in problem.edges], dtype=np.int64).reshape(-1, 2)
        self._share = shares(ends.ravel(), ends[:, ::-1].ravel(), problem.num_variables)
        self._unary = [self._of(costs) for costs in problem.unary_s]
        self._arcs: list[list[Arc]] = [[] for _ in problem.names]
        sizes = [len(costs) for costs in problem.unary_s]
        self._messages: list[Costs] = []
        for at, edge in enumerate(problem.edges):
            to_u, to_v = 2 * at, 2 * at + 1
            self._arcs[edge.u].append(Arc(edge.v, self._of(edge.table), 2 * id(edge.table), to_u, to_v))
            self._arcs[edge.v].append(Arc(edge.u, self._of(edge.table, True), 2 * id(edge.table) + 1, to_v, to_u))
            self._messages += [np.zeros(sizes[edge.u]), np.zeros(sizes[edge.v])]
        self._priced: dict[tuple[int, int, float], Costs] = {}
        self._made: dict[tuple[int, bytes], tuple[Costs, float]] = {}

    def reprice(self, prices_s_per_byte: Sequence[float]) -> None:
        """Begin anew at other prices of memory, from the messages of the last ones."""
        self.prices, self.bound_s, self._excess = prices_s_per_byte, -np.inf, []
        if self._passes is not None:
            self._passes.reprice(prices_s_per_byte)
        else:
            self._priced.clear()

    def priced(self, values: Sequence[int]) -> float:
        """What an assignment costs at the prices, what is forbidden included, without ``fixed_s``."""
        if self._passes is not None:
            return self._passes.priced(values)
        total = sum(float(self._costs(i)[value]) for i, value in enumerate(values))
        return total + sum(float(self._of(e.table)[values[e.u], values[e.v]]) for e in self.problem.edges)

    def sweep(self) -> tuple[int, ...]:
        """One pass forward, which chooses values on its way, and one backward, which proves a bound."""
        if self._passes is not None:
            values = self._passes.forward(self._grain)
            self._settle(*self._passes.backward(self._grain))
        else:
            values = self._forward()
            self._settle(*self._backward())
        return values

    def _settle(self, bound: float, excess: list[Costs], shifts: Shifts) -> None:
        """A pass back is over."""
        if bound > self.bound_s:
            self.shifts = shifts
        # Bounds rise with each variable; what a value exceeded it by is known of the moment that its variable was passed.
        self._excess, self._base_s = (excess if np.isfinite(self.bound_s) else []), self.bound_s
        self.bound_s = max(self.bound_s, bound)

    def kept(self, upper_s: float) -> list[NDArray[np.bool_]]:
        """The values that assignments of at most ``upper_s`` can hold, priced, ``fixed_s`` left out."""
        if not self._excess:
            return [np.ones(len(costs), dtype=bool) for costs in self.problem.unary_s]
        room = upper_s - self._base_s + SLACK * (abs(upper_s) + abs(self._base_s))
        return [excess <= room for excess in self._excess]

    def _of(self, array: Costs, flip: bool = False) -> Costs:
        """What is forbidden costs more than all else together."""
        key = (id(array), flip)
        if key not in self._finite:
            self._finite[key] = np.ascontiguousarray(self._filled(array.T if flip else array))
        return self._finite[key]

    def _filled(self, array: Costs) -> Costs:
        return np.where(np.isinf(array), self._forbidden, array)

    def _costs(self, i: int) -> Costs:
        price = self.prices[i]
        if not price:
            return self._unary[i]
        key = (id(self._unary[i]), id(self.problem.memory_bytes[i]), price)
        if key not in self._priced:
            self._priced[key] = self._unary[i] + price * self.problem.memory_bytes[i]
        return self._priced[key]

    def _total(self, i: int) -> Costs:
        total = self._costs(i).copy()
        for arc in self._arcs[i]:
            total += self._messages[arc.into]
        return total

    def _forward(self) -> tuple[int, ...]:
        values: list[int] = []
        for i, arcs in enumerate(self._arcs):
            if not i % 64:
                self._check()
            total = self._total(i)
            own = total
            if any(arc.other < i for arc in arcs):
                own = self._costs(i).copy()
                for arc in arcs:
                    own += arc.table[:, values[arc.other]] if arc.other < i else self._messages[arc.into]
            values.append(int(own.argmin()))
            total -= total.min()
            for arc in arcs:
                if arc.other > i:
                    self._send(arc, self._share[i] * total)
        return tuple(values)

    def _backward(self) -> tuple[float, list[Costs], Shifts]:
        """The bound is what the shifts make of least entries. A value's excess is over the least of the chains through its
        variable, whose sums are known here."""
        bound, excess = 0.0, [np.zeros(0)] * len(self._arcs)
        shifts = [(np.zeros(0), np.zeros(0))] * len(self.problem.edges)
        for i in range(len(self._arcs) - 1, -1, -1):
            if not i % 64:
                self._check()
            total = self._total(i)
            least = float(total.min())
            bound += least
            total -= least
            excess[i] = total
            for arc in self._arcs[i]:
                if arc.other < i:
                    gained = self._share[i] * total - self._messages[arc.into]
                    sent = self._send(arc, self._share[i] * total)
                    bound += sent
                    shifts[arc.into // 2] = -(self._messages[arc.out] + sent), gained
        return bound, excess, shifts

    def _send(self, arc: Arc, share: Costs) -> float:
        """A message, whose least entry is 0; what that took away."""
        base = share - self._messages[arc.into]
        key = (arc.known, base.tobytes())
        known = self._made.get(key)
        if known is None:
            loops = kernels(arc.table.size)
            if loops is None:
                out = (base[:, None] + arc.table).min(axis=0)
                least = float(out.min())
                known = np.floor((out - least) / self._grain) * self._grain, least
            else:
                out = np.empty(arc.table.shape[1])
                known = out, loops.message(base, arc.table, self._grain, out)
            if len(self._made) >= MAX_KNOWN:
                self._made.clear()
            self._made[key] = known
        self._messages[arc.out] = known[0]
        return known[1]


def sweeps(messages: Messages, upper_s: Callable[[], float], most: int = MAX_SWEEPS) -> Iterator[tuple[int, ...]]:
    """The assignments of one sweep after another, as long as these raise the bound, or what is known gets better.

    Args:
        upper_s: the least cost known by now, as the bound counts it.
    """
    least = np.inf
    for _ in range(most):
        bound = messages.bound_s
        yield messages.sweep()
        before, least = least, min(least, upper_s())
        gap = least - messages.bound_s
        if gap <= ROUNDING * abs(least):
            return
        if least >= before < np.inf and messages.bound_s - bound <= STALLED * min(gap, FAR * abs(messages.bound_s)):
            return


def best_price(messages: Messages, meet: Meet) -> float:
    """The price of memory whose bound is highest, or nearly: above it assignments fit, below it they do not.

    ``meet`` is called with every assignment found, the bound with ``fixed_s`` and the limit, and the price.
    """
    problem, limit = messages.problem, messages.problem.memory_limit_bytes
    assert limit is not None
    best, at = -np.inf, 0.0
    known: tuple[int, ...] | None = None

    def look(price: float) -> tuple[float, int]:
        nonlocal best, at, known
        messages.reprice([price] * problem.num_variables)
        found: list[tuple[float, tuple[int, ...]]] = []
        for values in sweeps(messages, lambda: found[0][0], SWEEPS_A_PRICE):
            found.append((messages.priced(values), values))
            found.sort()
        bound = sum_below(problem.fixed_s, messages.bound_s, -price * (limit - problem.fixed_memory_bytes))
        known = meet(found[0][1], bound, price)
        if bound > best:
            best, at = bound, price
        return line(problem, found[0][1], limit)

    rising = look(0.0)
    if rising[1] <= 0 or known is None:
        return at
    falling, low, high = line(problem, known, limit), 0.0, np.inf
    for _ in range(MAX_PRICES):
        price = (falling[0] - rising[0]) / max(rising[1] - falling[1], 1)
        if not low < price < high:
            price = (low * high) ** 0.5 if low else high / 2
        if not 0.0 < price < np.inf:
            break
        found = look(price)
        if found[1] > 0:
            rising, low = found, price
        else:
            falling, high = found, price
        if high <= NEAR * low:
            break
    return at


def _spread() -> Callable[[Costs], float]:
    """``magnitude`` of an array, looked at once."""
    known: dict[int, float] = {}

    def of(array: Costs) -> float:
        if id(array) not in known:
            known[id(array)] = magnitude(array)
        return known[id(array)]

    return of
