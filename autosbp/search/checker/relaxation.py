"""The checker's lower bounds: a problem with its memory limit priced, and the least memory, as sums of nonnegative parts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from autosbp.search._base import SearchProblem
from autosbp.search.checker.buckets import Array, Buckets, Factor, Order

EPSILON = 2.0**-52
Kept = list[NDArray[np.int64]]  # of each variable, the values that are still looked at


class Relaxation:
    """``hopeless(sums)`` tells which least sums of ``buckets`` no refuting assignment can have.

    A sum of k nonnegative parts is off by at most k roundings of itself; ``hopeless`` allows for four times as many as
    there are factors and variables, so that what it says holds in exact arithmetic.
    """

    def __init__(
        self, order: Order, kept: Kept, factors: Sequence[Factor], base: float, rounding: float, cut: float, exact: bool
    ) -> None:
        self.buckets = Buckets(order, [len(values) for values in kept], factors)
        parts = 0.0 if exact else 4.0 * EPSILON * (len(factors) + len(kept) + 2)
        self._share, self._base, self._rounding, self._cut = 1.0 - parts, base, rounding, cut

    @property
    def least(self) -> float:
        """The bound: no assignment of the kept values is below it."""
        return float(self.below(np.asarray(self.buckets.least)))

    @property
    def is_hopeless(self) -> bool:
        return bool(self.hopeless(np.asarray(self.buckets.least)))

    def below(self, sums: Array) -> Array:
        """Lower bounds in the problem's unit of least sums."""
        return self._base + sums * self._share - self._rounding

    def hopeless(self, sums: Array) -> NDArray[np.bool_]:
        return np.asarray(self.below(sums) >= self._cut)


def priced(problem: SearchProblem, order: Order, kept: Kept, price: float, target_s: float) -> Relaxation:
    """``cost + price * (memory - limit)``, which no assignment that fits exceeds its cost in; hopeless from ``target_s``."""
    lows, factors = _split_off(problem, kept, lambda array: array)
    over = -problem.memory_limit_bytes if problem.memory_limit_bytes is not None else 0
    over += problem.fixed_memory_bytes
    for i, values in enumerate(kept):
        use = problem.memory_bytes[i][values]
        low = int(use.min())
        over += low
        scope, costs = factors[i]
        factors[i] = scope, costs + price * (use - low)
    seconds, memory_s = math.fsum((problem.fixed_s, *lows)), price * over
    return Relaxation(
        order, kept, factors, seconds + memory_s, 4.0 * EPSILON * (abs(seconds) + abs(memory_s)), target_s, exact=False
    )


def lean(problem: SearchProblem, order: Order, kept: Kept, limit_bytes: int) -> Relaxation:
    """Bytes over the limit, what is forbidden left out; hopeless from one byte. Exact below 2**53 bytes."""
    _, factors = _split_off(problem, kept, lambda array: np.where(np.isinf(array), np.inf, 0.0))
    over = problem.fixed_memory_bytes - limit_bytes
    for i, values in enumerate(kept):
        use = problem.memory_bytes[i][values]
        over += int(use.min())
        scope, costs = factors[i]
        factors[i] = scope, costs + (use - use.min())
    return Relaxation(order, kept, factors, float(over), 0.0, 1.0, exact=True)


def _split_off(problem: SearchProblem, kept: Kept, made: Callable[[Array], Array]) -> tuple[list[float], list[Factor]]:
    """Least entries, and the factors less these: first one a variable, then one an edge."""
    lows: list[float] = []
    factors: list[Factor] = []

    def add(scope: tuple[int, ...], array: Array) -> None:
        least = float(array.min())
        low = least if math.isfinite(least) else 0.0
        lows.append(low)
        factors.append((scope, array - low))

    for i, values in enumerate(kept):
        add((i,), made(problem.unary_s[i][values]))
    for edge in problem.edges:
        add((edge.u, edge.v), made(edge.table[np.ix_(kept[edge.u], kept[edge.v])]))
    return lows, factors
