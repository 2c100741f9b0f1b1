"""The checker's bound from cost shifts, without an elimination: one pass over every table."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from autosbp.errors import CertificateError
from autosbp.search._base import SearchProblem
from autosbp.search.certificate import Shift


def shifted_bound(problem: SearchProblem, shifts: Sequence[Shift], price: float) -> float:
    """Lower bound with penalised memory: the sum of the least entries of all variables and pairs, after the shifts.

    A shift adds to a pair's table what it subtracts from the pair's variables, so every assignment keeps its cost.

    Raises:
        CertificateError: a shift names variables without a common edge, or has the wrong number of values.
    """
    sizes = [len(costs) for costs in problem.unary_s]
    own: list[NDArray[np.float64]] = [
        costs + price * use for costs, use in zip(problem.unary_s, problem.memory_bytes, strict=True)
    ]
    pairs: dict[tuple[int, int], NDArray[np.float64]] = {}
    for edge in problem.edges:
        u, v, table = (edge.u, edge.v, edge.table) if edge.u < edge.v else (edge.v, edge.u, edge.table.T)
        pairs[u, v] = pairs[u, v] + table if (u, v) in pairs else table
    moved: set[tuple[int, int]] = set()
    lows: list[float] = []
    for u, v, gained_u, gained_v in shifts:
        known = (u, v) in pairs and (u, v) not in moved and (len(gained_u), len(gained_v)) == (sizes[u], sizes[v])
        if not known:
            raise CertificateError("shifts", (u, v), "expected one entry per edge u < v, with seconds for all values")
        moved.add((u, v))
        of_u, of_v = np.array(gained_u), np.array(gained_v)
        own[u], own[v] = own[u] - of_u, own[v] - of_v
        lows.append(float((pairs[u, v] + of_u[:, None] + of_v[None, :]).min()))
    lows += [float(table.min()) for pair, table in pairs.items() if pair not in moved]
    lows += [float(costs.min()) for costs in own]
    limit = problem.memory_limit_bytes
    offset = 0.0 if limit is None else price * (problem.fixed_memory_bytes - limit)
    return math.fsum((problem.fixed_s, offset, *lows)) if all(map(math.isfinite, lows)) else math.inf
