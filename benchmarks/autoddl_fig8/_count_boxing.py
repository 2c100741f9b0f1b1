"""Boxing costs where all mesh axes are interchangeable: same size, same network level.

Swapping such axes changes no cost, so only the *counts* of a layout matter: how many axes split each dim, hold copies
(B), whole gradients (I) or partial sums (P). On 4,096 nodes, 12 axes of size 2, a matrix has 5^12 layouts and 1,820
count vectors.

A step moves j axes from one state to another, as one collective over a group of size^j. ``BoxingModel`` gives its
forward, backward and copy costs. The cost between two count vectors is the cheapest path of such steps: the lowest
boxing cost between any two nd layouts with these counts, over all alignments of their axes and all nestings of their
splits. A permute changes no count and never helps. A large group may be served in steps over smaller groups: the same
bytes, lower latency, more copies.

If axes move one at a time, some layout with the wanted counts is reachable from a given layout at that cost: each axis
is the innermost of the dim that it leaves and becomes the innermost of the dim that it joins. Several axes that move at
once must also nest in mesh order; this saves no communication, only copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import dijkstra

from autosbp.costmodel.boxing import BoxingModel
from autosbp.errors import InputError
from autosbp.sbp.boxing import ACTIONS, BoxingStep
from autosbp.sbp.layout import B, I, P, S, Sbp

Counts = NDArray[np.int64]
"""One row per layout, one column per state."""


class CountBoxing:
    """Costs between the count vectors of one tensor of ``shape`` and ``num_bytes``, all splits even.

    ``states`` are S(dim) of every dim, then B, I and P; without a gradient only B and P. ``counts[i]`` is vector i.

    Raises:
        InputError: the axes of the model's mesh differ in size or level.
    """

    def __init__(self, model: BoxingModel, shape: tuple[int, ...], num_bytes: int, differentiable: bool = True) -> None:
        require_uniform_axes(model)
        self.model, self.num_bytes, self.differentiable = model, num_bytes, differentiable
        self.num_axes, self.size = model.mesh.ndim, model.mesh.axes[0].size
        splits = tuple(S(dim) for dim in range(len(shape)))
        self.states: tuple[Sbp, ...] = (*splits, *((B, I, P) if differentiable else (B, P)))
        every = compositions(self.num_axes, len(self.states))
        even = np.ones(len(every), dtype=bool)
        for dim, extent in enumerate(shape):
            even &= every[:, dim] <= multiplicity(extent, self.size, self.num_axes)
        self.counts: Counts = every[even]
        self._weights = (self.num_axes + 1) ** np.arange(len(self.states), dtype=np.int64)
        self._place = np.full(int((self.num_axes + 1) ** len(self.states)), -1, dtype=np.int64)
        self._place[self.counts @ self._weights] = np.arange(len(self.counts))
        self._parts = self.size ** self.counts[:, : len(shape)].sum(axis=1)
        self._steps = self._graph()

    def rows(self, **columns: Sequence[int] | Counts) -> Counts:
        """Build count vectors from one column per state name, such as ``rows(S0=[2, 1], P=[1, 2])``; absent states are 0."""
        names = [f"S{state.dim}" if state.is_split else state.kind for state in self.states]
        count = len(next(iter(columns.values())))
        found = np.zeros((count, len(names)), dtype=np.int64)
        for name, column in columns.items():
            found[:, names.index(name)] += np.asarray(column, dtype=np.int64)
        return found

    def cost_s(self, sources: Counts, targets: Counts) -> NDArray[np.float64]:
        """Seconds from each source to each target, forward plus backward (sources x targets).

        Raises:
            InputError: a row is no count vector of this tensor.
        """
        starts, inverse = np.unique(self.ids(sources), return_inverse=True)
        ends = self.ids(targets)
        found: NDArray[np.float64] = dijkstra(self._steps, indices=starts)[:, ends][inverse]
        return found

    def ids(self, rows: Counts) -> NDArray[np.int64]:
        """Indices of these count vectors in ``counts``."""
        ids = np.where((rows >= 0).all(axis=1) & (rows.sum(axis=1) == self.num_axes), rows @ self._weights, 0)
        places: NDArray[np.int64] = self._place[ids]
        if (places < 0).any():
            bad = rows[int(np.argmax(places < 0))].tolist()
            raise InputError("counts", bad, f"expected even splits, and {self.num_axes} axes in all")
        return places

    def _graph(self) -> csr_matrix:
        sources, targets, seconds = [], [], []
        for at, one in enumerate(self.states):
            for to, two in enumerate(self.states):
                if at == to or (one.kind, two.kind) not in ACTIONS:
                    continue
                for moved in range(1, self.num_axes + 1):
                    begun = np.nonzero(self.counts[:, at] >= moved)[0]
                    change = moved * (self._weights[to] - self._weights[at])
                    ended = self._place[self.counts[begun] @ self._weights + change]
                    begun, ended = begun[ended >= 0], ended[ended >= 0]
                    sources.append(begun)
                    targets.append(ended)
                    message = self.num_bytes // np.minimum(self._parts[begun], self._parts[ended])
                    seconds.append(self._times(one, two, moved, message))
        ends = (np.concatenate(sources), np.concatenate(targets))
        return csr_matrix((np.concatenate(seconds), ends), shape=(len(self.counts),) * 2)

    def _times(self, one: Sbp, two: Sbp, moved: int, messages: NDArray[np.int64]) -> NDArray[np.float64]:
        dims = (one.dim if one.is_split else -1, two.dim if two.is_split else -1)
        step = BoxingStep(tuple(range(moved)), *ACTIONS[one.kind, two.kind], *dims, (), ())
        distinct, inverse = np.unique(messages, return_inverse=True)
        times = self.model.message_times_s(step, distinct.astype(np.float64), self.differentiable)
        return (times[0] + times[1] + times[2])[inverse]


def require_uniform_axes(model: BoxingModel) -> None:
    """Raise ``InputError`` unless all axes of the mesh have one size and lie on one level."""
    if len({(axis.size, axis.level) for axis in model.mesh.axes}) != 1:
        limit = "axes of one size on one level are needed for layouts as counts"
        raise InputError("mesh", model.mesh.shape, limit)


def compositions(total: int, parts: int) -> Counts:
    """All ways to write ``total`` as an ordered sum of ``parts`` counts, one per row, in lexicographic order."""
    bars = np.array(list(combinations(range(total + parts - 1), parts - 1)), dtype=np.int64).reshape(-1, parts - 1)
    ends = np.full((len(bars), 1), total + parts - 1)
    edges = np.concatenate([np.full((len(bars), 1), -1), bars, ends], axis=1)
    return np.diff(edges, axis=1) - 1


def multiplicity(extent: int, size: int, most: int) -> int:
    """Multiplicity of the factor ``size`` in ``extent``, at most ``most``."""
    count = 0
    while count < most and extent % size ** (count + 1) == 0:
        count += 1
    return count
