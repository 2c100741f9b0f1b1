"""The boxing planner: shortest paths over layouts, under the network model (DESIGN section 6)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra, floyd_warshall

from autosbp.cluster import Device
from autosbp.costmodel.network import NetworkModel
from autosbp.errors import InputError
from autosbp.sbp.boxing import COLLECTIVES, PMAX, PMIN, Step, message_bytes, step_between
from autosbp.sbp.mesh import Mesh
from autosbp.sbp.placement import B, I, NdSbp, P, S, Sbp, format_nd_sbp
from autosbp.sbp.step_table import step_table

FEW = 0.15
"""Of all layouts; costs from so many are computed row by row, from more all at once."""
RELABEL_S = 1e-9
"""Charged for any step, so that of two equally fast paths the shorter one is taken."""


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of one step, forward and backward, communication and local copies apart."""

    forward_comm_s: float
    backward_comm_s: float
    local_s: float

    @property
    def total_s(self) -> float:
        return self.forward_comm_s + self.backward_comm_s + self.local_s


class BoxingModel:
    """Costs of steps and cheapest paths for one mesh; tables are cached per tensor shape. ``known`` is for what callers work
    out from these, by their keys. Not safe across threads."""

    def __init__(self, network: NetworkModel, mesh: Mesh, copy_bytes_per_s: float | None = None) -> None:
        self.network, self.mesh = network, mesh
        self.copy_bytes_per_s = copy_bytes_per_s or network.cluster.device.memory_bandwidth_bytes_per_s
        self._tables: dict[tuple[tuple[int, ...], int, bool], BoxingTable] = {}
        self._step_costs: dict[tuple[Step, int, bool], StepCost] = {}
        self.known: dict[Hashable, Any] = {}

    @property
    def device(self) -> Device:
        return self.network.cluster.device

    def step_cost(self, step: Step, num_bytes: int, differentiable: bool) -> StepCost:
        key = (step, num_bytes, differentiable)
        if key not in self._step_costs:
            self._step_costs[key] = self.message_cost(step, message_bytes(step, num_bytes, self.mesh), differentiable)
        return self._step_costs[key]

    def message_cost(self, step: Step, message: int, differentiable: bool) -> StepCost:
        """Cost of a step whose message n is ``message`` bytes."""
        forward, backward, local = self.message_times_s(step, np.array([message], dtype=np.float64), differentiable)
        return StepCost(float(forward[0]), float(backward[0]), float(local[0]))

    def message_times_s(
        self,
        step: Step,
        messages: NDArray[np.float64],
        differentiable: bool,
        known: dict[tuple[str, tuple[int, ...]], NDArray[np.float64]] | None = None,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Forward, backward and local seconds of a step, for many messages at once. ``known`` keeps what collectives take,
        for steps of the same messages."""
        known = {} if known is None else known
        copy_s = self.device.op_overhead_s + 2 * messages / self.copy_bytes_per_s
        dims = (step.src_dim, step.dst_dim)
        times, local = [], np.full(messages.shape, RELABEL_S)
        for action, (src_dim, dst_dim) in (
            (step.forward, dims),
            (step.backward if differentiable else "none", dims[::-1]),
        ):
            key = (action, step.axes if action in COLLECTIVES else ())
            if key not in known:
                shape = self.mesh.group_shape(key[1])
                zeros = np.zeros(messages.shape)
                known[key] = self.network.times_s(action, messages, shape) if action in COLLECTIVES else zeros
            times.append(known[key])
            copies = _num_copies(action, src_dim, dst_dim)
            local = local + copy_s * copies if copies else local
        return times[0], times[1], local

    def table(self, shape: tuple[int, ...], num_bytes: int, differentiable: bool) -> BoxingTable:
        key = (shape, num_bytes, differentiable)
        if key not in self._tables:
            self._tables[key] = BoxingTable(self, *key)
        return self._tables[key]

    def plan(
        self, src: NdSbp, dst: NdSbp, shape: tuple[int, ...], num_bytes: int, differentiable: bool = True
    ) -> tuple[Step, ...]:
        """The cheapest steps from ``src`` to ``dst``, forward plus backward; ``()`` when they are equal."""
        return self.table(shape, num_bytes, differentiable).path(src, dst)


def _num_copies(action: str, src_dim: int, dst_dim: int) -> int:
    """Local copies of the message: collectives work on dim 0, so another dim is gathered or cut by a copy."""
    if action in ("slice", "pad", "mask", "all_reduce"):
        return 1
    if action == "all_gather":
        return int(src_dim != 0)
    if action == "reduce_scatter":
        return int(dst_dim != 0)
    return int(src_dim != 0) + int(dst_dim != 0) if action == "all_to_all" else 0


class BoxingTable:
    """All-pairs cheapest boxing of one tensor. ``cost_s[i, j]`` is from ``layouts[i]`` to ``layouts[j]``; paths may stop
    at layouts that nest in another order than the mesh's, too, which come after these in ``stops``.

    Without a gradient, partial maxima and minima are among the layouts, after the first ``num_sums``. Partial sums of
    one-byte elements (bools, which have none, and integers that would overflow) cost infinitely much."""

    def __init__(self, model: BoxingModel, shape: tuple[int, ...], num_bytes: int, differentiable: bool) -> None:
        self.mesh, self.num_bytes = model.mesh, num_bytes
        sizes = {axis.size for axis in self.mesh.axes}
        dims = [dim for dim, size in enumerate(shape) if size > 1 and any(size % axis == 0 for axis in sizes)]
        self.states = (*(S(dim) for dim in dims), *((B, I, P) if differentiable else (B, P)))
        self._all_states = {
            state: at for at, state in enumerate((*self.states, *(() if differentiable else (PMAX, PMIN))))
        }
        steps = step_table(tuple(self._all_states), self.mesh)
        factors = steps.factors(self.mesh.shape)
        self._even = found = steps.even((np.array(shape[: factors.shape[1]]) % factors == 0).all(axis=1))
        self.stops, self.layouts, self.index, self.num_sums = found.stops, found.layouts, found.index, found.num_sums
        parts = factors.prod(axis=1)
        message = num_bytes // np.minimum(parts[steps.source[found.keep]], parts[steps.target[found.keep]])
        distinct, inverse = np.unique(message, return_inverse=True)
        known: dict[tuple[str, tuple[int, ...]], NDArray[np.float64]] = {}
        costs = [
            model.message_times_s(step, distinct.astype(np.float64), differentiable, known) for step in steps.kinds
        ]
        seconds = np.array([forward + backward + local for forward, backward, local in costs])
        direct: NDArray[np.float64] = np.full((len(self.stops), len(self.stops)), np.inf)
        direct[found.source, found.target] = seconds[steps.kind[found.keep], inverse] if len(costs) else np.inf
        if not differentiable and num_bytes == prod(shape):
            partial = np.array([P in layout for layout in self.stops], dtype=bool)
            direct[partial], direct[:, partial] = np.inf, np.inf
        self._direct = direct
        self._is_closed = False
        self._rows: dict[int, NDArray[np.float64]] = {}

    @cached_property
    def _scale(self) -> float:
        # scipy takes edges below 1e-8 for none, so costs are scaled, by a power of two to keep every bit.
        finite = self._direct[np.isfinite(self._direct)]
        return float(2.0 ** -np.floor(np.log2(finite.min()))) if finite.size else 1.0

    @cached_property
    def _closure(self) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
        cost, previous = floyd_warshall(self._direct * self._scale, return_predecessors=True)
        cost /= self._scale
        np.fill_diagonal(cost, 0.0)
        self._is_closed = True
        return cost, previous

    @cached_property
    def _edges(self) -> csr_array:
        finite = np.isfinite(self._direct)
        np.fill_diagonal(finite, False)
        return csr_array((self._direct[finite] * self._scale, np.nonzero(finite)), shape=self._direct.shape)

    def costs_of(self, sources: NDArray[np.int64]) -> NDArray[np.float64]:
        """``cost_s[sources]``; few rows are computed alone."""
        wanted = np.unique(sources)
        missing = [int(at) for at in wanted if at not in self._rows]
        if self._is_closed or len(missing) + len(self._rows) > FEW * len(self.layouts):
            return np.asarray(self.cost_s[sources])
        if missing:
            found = dijkstra(self._edges, indices=missing) / self._scale
            self._rows.update(zip(missing, found[:, : len(self.layouts)], strict=True))
        rows = np.array([self._rows[int(at)] for at in wanted])
        return np.asarray(rows[np.searchsorted(wanted, sources)])

    @property
    def step_s(self) -> NDArray[np.float64]:
        """Seconds of the one step from ``layouts[i]`` to ``layouts[j]``; infinite where there is none."""
        return self._direct[: len(self.layouts), : len(self.layouts)]

    @property
    def cost_s(self) -> NDArray[np.float64]:
        return self._closure[0][: len(self.layouts), : len(self.layouts)]

    def ids(self, states: Sequence[Sbp], rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Layout indices of many layouts at once: ``rows[i, axis]`` chooses one of ``states`` on each axis; -1 where a
        layout is not even."""
        lookup = self._even.lookup(tuple(self._all_states))
        codes = np.array([self._all_states.get(state, -1) for state in states], dtype=np.int64)[rows]
        known = (codes >= 0).all(axis=1)
        weights = len(self._all_states) ** np.arange(self.mesh.ndim, dtype=np.int64)
        return np.where(known, lookup[np.where(known, codes @ weights, 0)], -1)

    def costs_from(self, src: NdSbp) -> NDArray[np.float64]:
        """Seconds from a layout to each of ``layouts``."""
        return np.asarray(self.cost_s[self._at(src)])

    def costs_to(self, dst: NdSbp) -> NDArray[np.float64]:
        """Seconds from each of ``layouts`` to one."""
        return self.cost_s[:, self._at(dst)]

    def path(self, src: NdSbp, dst: NdSbp) -> tuple[Step, ...]:
        start, at = self._at(src), self._at(dst)
        steps: list[Step] = []
        while at != start:
            before = int(self._closure[1][start, at])
            if before < 0:
                raise InputError("layout", f"{format_nd_sbp(src)} -> {format_nd_sbp(dst)}", "no boxing path exists")
            step = step_between(self.stops[before], self.stops[at], self.mesh)
            assert step is not None
            steps.append(step)
            at = before
        return tuple(reversed(steps))

    def _at(self, layout: NdSbp) -> int:
        if layout not in self.index:
            limit = "even splits in mesh order are expected, and Pmax or Pmin only without a gradient and alone"
            raise InputError("layout", format_nd_sbp(layout), limit)
        return self.index[layout]
