"""Sequential tree-reweighted message passing (TRW-S; Kolmogorov 2006): a bound, and assignments that often attain it.

Costs move between variables and edges without changing any assignment's sum, until the least entries of all add up to
nearly the optimum. That takes a few passes over the edges, where elimination would need tables over many variables at
once. A value that every layer reads, such as an encoder's output, is no obstacle. If bound and assignment meet, the
optimum is proved; otherwise the bound excludes most values from better assignments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autosbp.search._base import Costs, SearchProblem
from autosbp.search.solvers.lagrangian import IncumbentCallback, lagrangian_line, rounded_down_sum
from autosbp.search.solvers.minplus_backend import load_kernels
from autosbp.search.solvers.solver_state import max_abs_finite
from autosbp.search.solvers.trws_passes import MessagePasses, chain_shares, is_compiled_pass_faster

Shifts = list[tuple[Costs, Costs]]
"""Cost shifts (reparametrization): per edge, the costs added to its table by the value of each end, which the ends lose.

After the shifts, the least entries of all variables and edges add up to a bound."""
MESSAGE_QUANTUM = 2.0**-56
"""Messages are rounded down to multiples of this fraction of all costs.

Rounding lowers the bound by far less than any proof needs. In return, repeated blocks send equal messages, which are
computed once."""
MAX_KNOWN = 1 << 14
SLACK = 1e-9
"""Relative tolerance; wider than any rounding."""
ROUNDING = 1e-11
MAX_SWEEPS, SWEEPS_PER_MULTIPLIER = 40, 6
MIN_GAP_SHARE, MAX_GAP_SHARE_OF_BOUND = 0.01, 0.02
"""Stopping rule of sweeps.

``MIN_GAP_SHARE``: a sweep that raises the bound by less than this fraction of the gap is the last, unless it finds a better
assignment. ``MAX_GAP_SHARE_OF_BOUND``: fraction of the bound that caps this gap, as a cost further above says nothing about
how close the bound is to the optimum."""
MAX_PRICES, MULTIPLIER_TOLERANCE = 16, 1.02


@dataclass(frozen=True, slots=True, eq=False)
class MessageArc:
    """An edge seen from one of its variables: ``table[own value, other's value]``.

    ``into`` and ``out`` are the indices of messages to this variable and to the other one; ``known`` identifies equal
    tables."""

    other: int
    table: Costs
    known: int
    into: int
    out: int


class TrwsMessages:
    """TRW-S over a problem; ``sweep`` raises ``bound_s``.

    The bound covers costs with memory penalised by the multipliers ``prices`` (one per variable), without ``fixed_s``.

    Args:
        problem: at most one edge joins a pair, from the lower variable to the higher; equal arrays are one object.
        check: called often; may raise to abandon the work.
    """

    def __init__(self, problem: SearchProblem, check: Callable[[], None]) -> None:
        self.problem, self._check = problem, check
        self.bound_s = -np.inf
        self.shifts: Shifts = []
        self._forbidden = 2.0 * sum(map(_spread(), (*problem.unary_s, *(e.table for e in problem.edges)))) or 1.0
        self._grain = MESSAGE_QUANTUM * self._forbidden
        self._finite: dict[tuple[int, bool], Costs] = {}
        self._excess: list[Costs] = []
        self._base_s = -np.inf
        self.prices: Sequence[float] = [0.0] * problem.num_variables
        self._passes = (
            MessagePasses(problem, self._replace_forbidden, check) if is_compiled_pass_faster(problem) else None
        )
        if self._passes is not None:
            return
        ends = np.array([(edge.u, edge.v) for edge in problem.edges], dtype=np.int64).reshape(-1, 2)
        self._share = chain_shares(ends.ravel(), ends[:, ::-1].ravel(), problem.num_variables)
        self._unary = [self._finite_table(costs) for costs in problem.unary_s]
        self._arcs: list[list[MessageArc]] = [[] for _ in problem.names]
        sizes = [len(costs) for costs in problem.unary_s]
        self._messages: list[Costs] = []
        for at, edge in enumerate(problem.edges):
            to_u, to_v = 2 * at, 2 * at + 1
            self._arcs[edge.u].append(
                MessageArc(edge.v, self._finite_table(edge.table), 2 * id(edge.table), to_u, to_v)
            )
            self._arcs[edge.v].append(
                MessageArc(edge.u, self._finite_table(edge.table, True), 2 * id(edge.table) + 1, to_v, to_u)
            )
            self._messages += [np.zeros(sizes[edge.u]), np.zeros(sizes[edge.v])]
        self._priced: dict[tuple[int, int, float], Costs] = {}
        self._made: dict[tuple[int, bytes], tuple[Costs, float]] = {}

    def set_multipliers(self, prices_s_per_byte: Sequence[float]) -> None:
        """Start over at other Lagrange multipliers of memory, from the current messages."""
        self.prices, self.bound_s, self._excess = prices_s_per_byte, -np.inf, []
        if self._passes is not None:
            self._passes.set_multipliers(prices_s_per_byte)
        else:
            self._priced.clear()

    def priced(self, values: Sequence[int]) -> float:
        """Cost of an assignment at the multipliers, with forbidden entries at a finite cost, without ``fixed_s``."""
        if self._passes is not None:
            return self._passes.priced(values)
        total = sum(float(self._costs(i)[value]) for i, value in enumerate(values))
        return total + sum(float(self._finite_table(e.table)[values[e.u], values[e.v]]) for e in self.problem.edges)

    def sweep(self) -> tuple[int, ...]:
        """One forward pass, which chooses values on its way, and one backward pass, which proves a bound."""
        if self._passes is not None:
            values = self._passes.forward(self._grain)
            self._record_backward_pass(*self._passes.backward(self._grain))
        else:
            values = self._forward()
            self._record_backward_pass(*self._backward())
        return values

    def _record_backward_pass(self, bound: float, excess: list[Costs], shifts: Shifts) -> None:
        """Record the results of a backward pass."""
        if bound > self.bound_s:
            self.shifts = shifts
        # The bound rises with each variable; a value's excess refers to the moment when the pass visited its variable.
        self._excess, self._base_s = (excess if np.isfinite(self.bound_s) else []), self.bound_s
        self.bound_s = max(self.bound_s, bound)

    def kept(self, upper_s: float) -> list[NDArray[np.bool_]]:
        """Masks of the values that assignments of penalised cost at most ``upper_s`` (without ``fixed_s``) can hold."""
        if not self._excess:
            return [np.ones(len(costs), dtype=bool) for costs in self.problem.unary_s]
        room = upper_s - self._base_s + SLACK * (abs(upper_s) + abs(self._base_s))
        return [excess <= room for excess in self._excess]

    def _finite_table(self, array: Costs, flip: bool = False) -> Costs:
        """The array with forbidden entries at a cost above all others together."""
        key = (id(array), flip)
        if key not in self._finite:
            self._finite[key] = np.ascontiguousarray(self._replace_forbidden(array.T if flip else array))
        return self._finite[key]

    def _replace_forbidden(self, array: Costs) -> Costs:
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
        """The bound, the excess of each value, and the shifts.

        The bound is the sum of least entries after the shifts. A value's excess is over the least of the chains through
        its variable, whose sums are known here."""
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

    def _send(self, arc: MessageArc, share: Costs) -> float:
        """Send a message, normalised to a least entry of 0; returns the amount subtracted."""
        base = share - self._messages[arc.into]
        key = (arc.known, base.tobytes())
        known = self._made.get(key)
        if known is None:
            loops = load_kernels(arc.table.size)
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


def sweeps(messages: TrwsMessages, upper_s: Callable[[], float], most: int = MAX_SWEEPS) -> Iterator[tuple[int, ...]]:
    """Assignments of consecutive sweeps, while these raise the bound or the best known cost improves.

    Args:
        upper_s: returns the least cost known so far, in the bound's terms.
    """
    least = np.inf
    for _ in range(most):
        bound = messages.bound_s
        yield messages.sweep()
        before, least = least, min(least, upper_s())
        gap = least - messages.bound_s
        if gap <= ROUNDING * abs(least):
            return
        if least >= before < np.inf and messages.bound_s - bound <= MIN_GAP_SHARE * min(
            gap, MAX_GAP_SHARE_OF_BOUND * abs(messages.bound_s)
        ):
            return


def best_multiplier(messages: TrwsMessages, meet: IncumbentCallback) -> float:
    """The Lagrange multiplier of memory with about the highest bound: above it assignments fit, below it they do not.

    ``meet`` is called with every assignment found, the bound with ``fixed_s`` and the limit, and the multiplier."""
    problem, limit = messages.problem, messages.problem.memory_limit_bytes
    assert limit is not None
    best, at = -np.inf, 0.0
    known: tuple[int, ...] | None = None

    def look(price: float) -> tuple[float, int]:
        nonlocal best, at, known
        messages.set_multipliers([price] * problem.num_variables)
        found: list[tuple[float, tuple[int, ...]]] = []
        for values in sweeps(messages, lambda: found[0][0], SWEEPS_PER_MULTIPLIER):
            found.append((messages.priced(values), values))
            found.sort()
        bound = rounded_down_sum(problem.fixed_s, messages.bound_s, -price * (limit - problem.fixed_memory_bytes))
        known = meet(found[0][1], bound, price)
        if bound > best:
            best, at = bound, price
        return lagrangian_line(problem, found[0][1], limit)

    rising = look(0.0)
    if rising[1] <= 0 or known is None:
        return at
    falling, low, high = lagrangian_line(problem, known, limit), 0.0, np.inf
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
        if high <= MULTIPLIER_TOLERANCE * low:
            break
    return at


def _spread() -> Callable[[Costs], float]:
    """``max_abs_finite`` of arrays, computed once per array."""
    known: dict[int, float] = {}

    def of(array: Costs) -> float:
        if id(array) not in known:
            known[id(array)] = max_abs_finite(array)
        return known[id(array)]

    return of
