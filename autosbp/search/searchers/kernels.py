"""Min-plus loops, compiled: sums are made and compared in registers, where numpy writes each to memory and reads it again.

Sums and minima are those of numpy, bit for bit: a result does not tell which of the two made it.
"""

from __future__ import annotations

import numpy as np

from autosbp.search._base import Costs
from autosbp.search.searchers.compiled import compiled


@compiled
def least_sums(one: Costs, two: Costs, out: Costs, first: int, end: int) -> None:
    """``out[i, a, b] = min over x of one[i, x, a] + two[i, x, b]`` for a from ``first`` to before ``end``; four x at a time,
    so that ``out`` is seldom touched."""
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


@compiled
def message(base: Costs, table: Costs, grain: float, out: Costs) -> float:
    """``out[b] = min over a of base[a] + table[a, b]``, less the least of them, which is returned, and rounded down to
    multiples of ``grain``."""
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
