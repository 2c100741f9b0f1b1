"""Min-plus loops compiled by numba: sums are added and compared in registers, while NumPy stores and reloads each.

Sums and minima are bit for bit those of NumPy, so results do not depend on which of the two ran."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from autosbp.search._base import Costs
from autosbp.search.solvers.numba_functions import compiled_nogil

Ints = NDArray[np.int64]


@compiled_nogil
def least_sums(one: Costs, two: Costs, out: Costs, first: int, end: int) -> None:
    """``out[i, a, b] = min over x of one[i, x, a] + two[i, x, b]`` for ``first <= a < end``.

    Processes four x at a time, so that ``out`` is rarely touched."""
    for i in range(len(out)):
        for a in range(first, end):
            row = out[i, a]
            row[:] = np.inf
            x = 0
            while x + 4 <= one.shape[1]:
                s0, s1, s2, s3 = one[i, x, a], one[i, x + 1, a], one[i, x + 2, a], one[i, x + 3, a]
                for b in range(len(row)):
                    v0, v1, v2, v3 = (
                        s0 + two[i, x, b],
                        s1 + two[i, x + 1, b],
                        s2 + two[i, x + 2, b],
                        s3 + two[i, x + 3, b],
                    )
                    v0 = v0 if v0 < v1 else v1
                    v2 = v2 if v2 < v3 else v3
                    v0 = v0 if v0 < v2 else v2
                    row[b] = v0 if v0 < row[b] else row[b]
                x += 4
            while x < one.shape[1]:
                s0 = one[i, x, a]
                for b in range(len(row)):
                    v0 = s0 + two[i, x, b]
                    row[b] = v0 if v0 < row[b] else row[b]
                x += 1


@compiled_nogil
def message(base: Costs, table: Costs, grain: float, out: Costs) -> float:
    """``out[b] = min over a of base[a] + table[a, b]``, minus its least entry, rounded down to multiples of ``grain``.

    Returns the least entry."""
    out[:] = np.inf
    for a in range(len(base)):
        own = base[a]
        for b in range(len(out)):
            v = own + table[a, b]
            out[b] = v if v < out[b] else out[b]
    least = out[0]
    for b in range(1, len(out)):
        least = out[b] if out[b] < least else least
    for b in range(len(out)):
        out[b] = np.floor((out[b] - least) / grain) * grain
    return float(least)


@compiled_nogil
def pass_messages(
    firsts: Ints, arcs: Ints, tables: Costs, begins: Ints, costs: Costs, shares: Costs, messages: Costs, values: Ints,
    excess: Costs, shifts: Costs, first: int, end: int, back: bool, grain: float, bound: float,
) -> float:  # fmt: skip
    """Forward or backward pass of tree-reweighted messages over some variables (``solvers.trws_passes``)."""
    for turn in range(end - first):
        i = end - 1 - turn if back else first + turn
        size = begins[i + 1] - begins[i]
        total = costs[begins[i] : begins[i + 1]].copy()
        own = total.copy()
        for at in range(firsts[i], firsts[i + 1]):
            other, into = arcs[at, 0], messages[arcs[at, 3] : arcs[at, 3] + size]
            total += into
            if other < i and not back:
                row = arcs[at, 2] + values[other] * size
                own += tables[row : row + size]
            else:
                own += into
        least = total.min()
        total -= least
        if back:
            bound += least
            excess[begins[i] : begins[i + 1]] = total
        else:
            values[i] = own.argmin()
        for at in range(firsts[i], firsts[i + 1]):
            other, rows, to, out = arcs[at, 0], arcs[at, 1], arcs[at, 3], arcs[at, 4]
            if (other < i) == back:
                others = begins[other + 1] - begins[other]
                base = shares[i] * total - messages[to : to + size]
                table = tables[rows : rows + size * others].reshape(size, others)
                sent = message(base, table, grain, messages[out : out + others])
                if back:
                    bound += sent
                    shifts[to : to + size] = base
                    shifts[out : out + others] = -(messages[out : out + others] + sent)
    return bound
