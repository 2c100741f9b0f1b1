"""Lower bounds of the checker: cost with penalised memory, and least memory, as sums of nonnegative factors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from autosbp.search._base import SearchProblem
from autosbp.search.checker.bucket_elimination import Array, BucketMessages, BucketOrder, Factor

EPSILON = 2.0**-52
Kept = list[NDArray[np.int64]]  # per variable, the values that are still considered


class Relaxation:
    """A lower bound over the kept values; ``hopeless(sums)`` marks sums of ``buckets`` that no refuting assignment can have.

    A sum of k nonnegative parts has at most k relative rounding errors. ``hopeless`` allows for four times the number
    of factors and variables, so that its answers hold in exact arithmetic."""

    def __init__(
        self,
        order: BucketOrder,
        kept: Kept,
        factors: Sequence[Factor],
        base: float,
        rounding: float,
        cut: float,
        exact: bool,
    ) -> None:
        self.buckets = BucketMessages(order, [len(values) for values in kept], factors)
        parts = 0.0 if exact else 4.0 * EPSILON * (len(factors) + len(kept) + 2)
        self._share, self._base, self._rounding, self._cut = 1.0 - parts, base, rounding, cut

    @property
    def least(self) -> float:
        """Lower bound of every assignment of the kept values."""
        return float(self.below(np.asarray(self.buckets.least)))

    @property
    def is_proved(self) -> bool:
        return bool(self.is_refuted(np.asarray(self.buckets.least)))

    def below(self, sums: Array) -> Array:
        """Lower bounds in the problem's unit, from least sums."""
        return self._base + sums * self._share - self._rounding

    def is_refuted(self, sums: Array) -> NDArray[np.bool_]:
        return np.asarray(self.below(sums) >= self._cut)


def lagrangian_relaxation(
    problem: SearchProblem, order: BucketOrder, kept: Kept, price: float, target_s: float
) -> Relaxation:
    """Relaxation ``cost + price * (memory - limit)``, hopeless from ``target_s``.

    It is at most the cost of any assignment that fits."""
    lows, factors = _normalised_factors(problem, kept, lambda array: array)
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


def memory_relaxation(problem: SearchProblem, order: BucketOrder, kept: Kept, limit_bytes: int) -> Relaxation:
    """Relaxation of the bytes over the limit, without forbidden values and pairs; hopeless from one byte.

    Exact below 2**53 bytes."""
    _, factors = _normalised_factors(problem, kept, lambda array: np.where(np.isinf(array), np.inf, 0.0))
    over = problem.fixed_memory_bytes - limit_bytes
    for i, values in enumerate(kept):
        use = problem.memory_bytes[i][values]
        over += int(use.min())
        scope, costs = factors[i]
        factors[i] = scope, costs + (use - use.min())
    return Relaxation(order, kept, factors, float(over), 0.0, 1.0, exact=True)


def _normalised_factors(
    problem: SearchProblem, kept: Kept, made: Callable[[Array], Array]
) -> tuple[list[float], list[Factor]]:
    """Least entries, and factors minus these: one per variable, then one per edge."""
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
