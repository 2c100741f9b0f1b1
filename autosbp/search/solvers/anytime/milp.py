"""Optimum of small problems by HiGHS' branch and bound on the local polytope.

Memory limits are added for the instants that solutions exceed."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, milp

from autosbp.search.solvers.anytime.assignment import TINY
from autosbp.search.solvers.anytime.cost_network import CostNetwork
from autosbp.search.solvers.anytime.interval_problem import FORBIDDEN, Floats, Ints

AT_ONCE = 20
"""Instants whose limits are added after one solution."""
SCALE = 1e4
"""Scaled gap between the best known cost and the sum of all least costs: the solver's tolerances are absolute."""
TOLERANCE = 1e-9
"""Relative rounding of a bound."""


@dataclass(frozen=True)
class MilpResult:
    """Result of ``prove``.

    ``bound`` holds for all assignments. ``x`` fits, if time sufficed, and is ``optimal`` except for rare rounding.
    ``infeasible``: there is no assignment."""

    bound: float
    x: Ints | None = None
    optimal: bool = False
    infeasible: bool = False


def prove(network: CostNetwork, cost: float, deadline: float) -> MilpResult:
    """The optimum, or a bound.

    Args:
        cost: of the best assignment known; inf if there is none.
        deadline: in terms of ``time.monotonic``.
    """
    program = _Program(network, cost)
    bound, optimal = -np.inf, True
    while (left := deadline - time.monotonic()) > 0.0:
        x, value, infeasible = program.solve(left)
        bound = max(bound, value) if optimal else bound
        if infeasible:
            return MilpResult(bound, infeasible=optimal and not np.isfinite(cost))
        if x is None:
            break
        over = network.filled(x) - network.limit
        if over.max(initial=0.0) <= 0.0:
            return MilpResult(bound, x, optimal)
        if not program.add_limits(over):
            # Solvers respect limits within a tolerance. Solutions that exceed one by less are cut off, perhaps with an
            # optimum.
            program.tighten(over)
            optimal = False
    return MilpResult(bound)


class _Program:
    """Linear program with a column per value and per table entry.

    Each node has one value; a table's rows and columns sum to the values of its nodes."""

    def __init__(self, network: CostNetwork, cost: float) -> None:
        self.network = network
        links = network.links
        self.count = len(network.costs)
        ahead = [
            k for i in range(network.num_nodes) for k in range(links.begin[i], links.begin[i + 1]) if links.other[k] > i
        ]
        owner = np.repeat(np.arange(network.num_nodes), np.diff(links.begin))
        sizes = network.num_values
        costs = [network.costs]
        rows, columns, signs = (
            [np.repeat(np.arange(network.num_nodes), sizes)],
            [np.arange(self.count)],
            [np.ones(self.count)],
        )
        height, width = network.num_nodes, self.count
        for k in ahead:
            i, j = owner[k], links.other[k]
            shape = int(sizes[i]), int(sizes[j])
            entries = shape[0] * shape[1]
            costs.append(links.tables[links.place[k] : links.place[k] + entries])
            across, down = np.divmod(np.arange(entries), shape[1])
            for node, own, length in ((i, across, shape[0]), (j, down, shape[1])):
                rows += [height + own, height + np.arange(length)]
                columns += [width + np.arange(entries), links.first[node] + np.arange(length)]
                signs += [np.ones(entries), -np.ones(length)]
                height += length
            width += entries
        # Up to a constant, no cost is negative: an entry that alone costs more than the best known is in no better
        # assignment.
        least = [np.repeat(np.minimum.reduceat(network.costs, links.first[:-1]), sizes)]
        least += [np.full(len(table), table.min()) for table in costs[1:]]
        self.constant = float(least[0][links.first[:-1]].sum()) + sum(float(each[0]) for each in least[1:])
        joined = np.concatenate(costs) - np.concatenate(least)
        hopeless = min(cost - self.constant + 2 * TINY, FORBIDDEN / 2)
        self.scale = SCALE / max(hopeless, 1.0)
        self.costs = np.where(joined <= hopeless, joined, 0.0) * self.scale
        self.upper = (joined <= hopeless).astype(np.float64)
        matrix = sparse.csr_array(
            (np.concatenate(signs), (np.concatenate(rows), np.concatenate(columns))), shape=(height, width)
        )
        right = np.concatenate([np.ones(network.num_nodes), np.zeros(height - network.num_nodes)])
        self.equal = LinearConstraint(matrix, right, right)
        self.integral = np.concatenate([np.ones(self.count), np.zeros(width - self.count)])
        self.limited: dict[int, float] = {}

    def solve(self, seconds: float) -> tuple[Ints | None, float, bool]:
        """An optimum under the limits so far, a bound, and whether the program is infeasible."""
        limits = [self._limit(at, room) for at, room in self.limited.items()]
        found = milp(
            self.costs, constraints=[self.equal, *limits], integrality=self.integral, bounds=Bounds(0.0, self.upper),
            options={"time_limit": seconds, "mip_rel_gap": 0.0},
        )  # fmt: skip
        bound = -np.inf
        if found.mip_dual_bound is not None and np.isfinite(found.mip_dual_bound):
            bound = found.mip_dual_bound / self.scale + self.constant
            bound -= TOLERANCE * abs(bound)
        if found.status == 2:  # HiGHS: infeasible
            return None, bound, True
        if found.status != 0 or found.x is None:
            return None, bound, False
        return self._values(found.x[: self.count]), bound, False

    def _values(self, chosen: Floats) -> Ints:
        first = self.network.links.first
        return np.array([int(chosen[a:b].argmax()) for a, b in zip(first[:-1], first[1:], strict=True)], dtype=np.int64)

    def add_limits(self, over: Floats) -> bool:
        """Add limits for the fullest instants, spaced apart. False if all exceeded instants already have one."""
        over = over.copy()
        over[list(self.limited)] = -np.inf
        apart = max(1, len(over) // 100)
        found = False
        for _ in range(AT_ONCE):
            worst = int(over.argmax())
            if over[worst] <= 0.0:
                break
            self.limited[worst] = self.network.limit - float(self.network.base[worst])
            over[max(0, worst - apart + 1) : worst + apart] = -np.inf
            found = True
        return found

    def tighten(self, over: Floats) -> None:
        """Reduce the limits that were exceeded, by twice the excess."""
        for at in np.flatnonzero(over > 0.0).tolist():
            self.limited[at] -= 2.0 * float(over[at])

    def _limit(self, at: int, room: float) -> LinearConstraint:
        """Limit of bytes at an instant, in addition to what is always used."""
        network, rows = self.network, self.network.rows
        used: NDArray[np.float64] = np.zeros(len(self.costs))
        for r in np.flatnonzero((rows.start <= at) & (at < rows.stop)).tolist():
            i = int(np.searchsorted(rows.begin, r, side="right")) - 1
            low, size = network.links.first[i], network.num_values[i]
            used[low : low + size] += rows.used[rows.place[r] : rows.place[r] + size]
        unit = max(network.limit, 1.0)
        return LinearConstraint(sparse.csr_array(used[None, :] / unit), -np.inf, room / unit)
