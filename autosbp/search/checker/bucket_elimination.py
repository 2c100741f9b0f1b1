"""Bucket elimination for the checker of certificates, in plain NumPy; it shares nothing with the solvers.

Dechter 1999, "Bucket elimination": each variable's bucket holds the factors whose other variables are eliminated later.
The minimum of their sum over the variable is a message to the bucket of the first of those. All factors are
nonnegative, so the rounding error of a sum is relative to the sum."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MAX_AT_ONCE = 1 << 16  # entries of a temporary that stays in cache
Array = NDArray[np.float64]
Factor = tuple[tuple[int, ...], Array]  # variables, and a dim for each


@dataclass(frozen=True, slots=True)
class BucketOrder:
    """Variables in elimination order; ``scopes[v]`` are the others in v's bucket when v is eliminated, in order."""

    variables: tuple[int, ...]
    scopes: tuple[tuple[int, ...], ...]


def min_fill(count: int, pairs: Sequence[tuple[int, int]]) -> BucketOrder:
    """Elimination order that next takes the variable with the fewest fill-in edges; the lowest index of ties."""
    near: list[set[int]] = [set() for _ in range(count)]
    for u, v in pairs:
        near[u].add(v)
        near[v].add(u)

    def fill(variable: int) -> int:
        return sum(b not in near[a] for a, b in itertools.combinations(sorted(near[variable]), 2))

    now = [fill(variable) for variable in range(count)]
    heap = [(now[variable], variable) for variable in range(count)]
    heapq.heapify(heap)
    left: list[set[int]] = [set()] * count
    order: list[int] = []
    gone = [False] * count
    while heap:
        filled, variable = heapq.heappop(heap)
        if gone[variable] or filled != now[variable]:
            continue
        gone[variable] = True
        order.append(variable)
        left[variable] = set(near[variable])
        changed = set(near[variable])
        for a in near[variable]:
            near[a] |= near[variable]
            near[a] -= {a, variable}
        for a in left[variable]:
            changed |= near[a]
        for other in changed:
            counted = fill(other)
            if counted != now[other]:
                now[other] = counted
                heapq.heappush(heap, (counted, other))
    place = {variable: at for at, variable in enumerate(order)}
    return BucketOrder(tuple(order), tuple(tuple(sorted(scope, key=place.__getitem__)) for scope in left))


def greatest_table(order: BucketOrder, sizes: Sequence[int]) -> int:
    """Entries of the largest table of the elimination."""
    return max((sizes[v] * math.prod(sizes[u] for u in order.scopes[v]) for v in order.variables), default=0)


class BucketMessages:
    """Messages of one elimination; ``least`` is the least sum of the factors over all assignments (inf: infeasible).

    Bucket tables are recomputed when needed, as they are far larger than the messages."""

    def __init__(self, order: BucketOrder, sizes: Sequence[int], factors: Sequence[Factor]) -> None:
        self.order, self.sizes = order, sizes
        self.num_factors = len(factors)
        self.messages: list[Array] = [np.zeros(0)] * len(sizes)
        self._position = [0] * len(sizes)
        for at, variable in enumerate(order.variables):
            self._position[variable] = at
        self._factors: list[list[Factor]] = [[] for _ in sizes]
        self._children: list[list[int]] = [[] for _ in sizes]
        self._roots: list[int] = []
        for scope, array in factors:
            self._factors[min(scope, key=self._position.__getitem__)].append((scope, array))
        for variable in order.variables:
            message = self.messages[variable] = self._message(variable)
            behind = order.scopes[variable]
            if behind:
                self._factors[behind[0]].append((behind, message))
                self._children[behind[0]].append(variable)
            else:
                self._roots.append(variable)
        self.least = sum(float(self.messages[variable]) for variable in self._roots)

    def marginals(self) -> list[Array]:
        """Per variable, [value] least sum over the assignments with that value, by a downward message pass."""
        found: list[Array] = [np.zeros(0)] * len(self.sizes)
        outside: list[Array] = [np.zeros(0)] * len(self.sizes)  # over a bucket's scope: the least of all other buckets
        for variable in self._roots:
            outside[variable] = _subtract(np.asarray(self.least), self.messages[variable])
        for variable in reversed(self.order.variables):
            belief = self._table(variable) + outside[variable][..., None]
            outside[variable] = np.zeros(0)
            found[variable] = belief.min(axis=tuple(range(belief.ndim - 1)))
            scope = (*self.order.scopes[variable], variable)
            for child in self._children[variable]:
                inside = self.order.scopes[child]
                away = tuple(axis for axis, each in enumerate(scope) if each not in inside)
                rest = tuple(each for each in scope if each in inside)
                turned = belief.min(axis=away).transpose([rest.index(each) for each in inside])
                outside[child] = _subtract(turned, self.messages[child])
        return found

    def line(self, variable: int, values: NDArray[np.int64]) -> Array:
        """[value] increase of the least sum, with the variables eliminated later set to ``values``."""
        total = np.zeros(self.sizes[variable])
        for scope, array in self._factors[variable]:
            total = total + array[tuple(slice(None) if each == variable else int(values[each]) for each in scope)]
        message = self.messages[variable][tuple(int(values[each]) for each in self.order.scopes[variable])]
        return _subtract(total, message)

    def _table(self, variable: int) -> Array:
        """Sum of a bucket's factors, over its scope and then the variable."""
        shape = [self.sizes[each] for each in (*self.order.scopes[variable], variable)]
        return np.broadcast_to(_sum(self._parts(variable)), shape)

    def _message(self, variable: int) -> Array:
        """Minimum of ``_table`` over the variable, row by row if the table is large."""
        parts = self._parts(variable)
        shape = tuple(self.sizes[each] for each in self.order.scopes[variable])
        if math.prod(shape) * self.sizes[variable] <= MAX_AT_ONCE or not shape:
            return np.broadcast_to(_sum(parts).min(axis=-1), shape)
        message = np.empty(shape)
        for row in range(shape[0]):
            message[row] = _sum([part[row if len(part) > 1 else 0] for part in parts]).min(axis=-1)
        return message

    def _parts(self, variable: int) -> list[Array]:
        """A bucket's factors with one dim per variable of the scope, then the variable's own; smallest first."""
        scope = (*self.order.scopes[variable], variable)
        parts = [np.zeros([1] * (len(scope) - 1) + [self.sizes[variable]])]
        for own, array in self._factors[variable]:
            axes = [scope.index(each) for each in own]
            shape = [1] * len(scope)
            for axis, size in zip(axes, array.shape, strict=True):
                shape[axis] = size
            parts.append(array.transpose(np.argsort(axes)).reshape(shape))
        return sorted(parts, key=lambda part: part.size)


def _sum(parts: Sequence[Array]) -> Array:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def _subtract(total: Array, part: Array) -> Array:
    """``total - part``; inf where ``part`` is inf (forbidden)."""
    return np.where(np.isinf(part), np.inf, total - np.where(np.isinf(part), 0.0, part))
