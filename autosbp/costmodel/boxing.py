"""The boxing planner: shortest paths over layouts, under the network model."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autosbp.cluster.spec import Device
from autosbp.costmodel.network import NetworkModel, level_of
from autosbp.costmodel.shortest_paths import shortest_path_s
from autosbp.errors import InputError
from autosbp.sbp.boxing import COLLECTIVES, PMAX, PMIN, BoxingStep, message_bytes, step_between
from autosbp.sbp.boxing_step_table import StepTable, step_table
from autosbp.sbp.layout import B, I, NdSbp, P, S, Sbp, format_nd_sbp
from autosbp.sbp.mesh import Mesh
from autosbp.utils.arrays import unique_inverse

RELABEL_S = 1e-9
"""Charged for any step, so that the shorter of two equally fast paths is taken."""


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of one step: forward communication, backward communication, and local copies."""

    forward_comm_s: float
    backward_comm_s: float
    local_s: float

    @property
    def total_s(self) -> float:
        return self.forward_comm_s + self.backward_comm_s + self.local_s


@dataclass(frozen=True, slots=True)
class CostShares:
    """Fractions of the boxing cost that count.

    Those of messages are by direction and slowest level crossed; those of local copies by direction. Paths minimise the
    counted cost, so no path counts less.
    """

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    forward_copies: float
    backward_copies: float

    @property
    def counts_everything(self) -> bool:
        """Whether every part counts in full."""
        return {*self.forward, *self.backward, self.forward_copies, self.backward_copies} == {1.0}


@dataclass(slots=True)
class BoxingTables:
    """State that models share if they give all steps of one mesh the same costs.

    Args:
        tables: boxing tables by tensor.
        step_costs: costs of single steps.
        known: results that callers derive from these, by their own keys.
    """

    tables: dict[tuple[tuple[int, ...], int, bool, bool, CostShares | None], BoxingTable] = field(default_factory=dict)
    step_costs: dict[tuple[BoxingStep, int, bool], StepCost] = field(default_factory=dict)
    known: dict[Hashable, Any] = field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        """Bytes of all cached arrays."""
        others = [each for found in self.known.values() for each in (found if isinstance(found, tuple) else (found,))]
        arrays = sum(each.nbytes for each in others if isinstance(each, np.ndarray))
        return arrays + sum(table.num_cost_bytes for table in self.tables.values())


class BoxingModel:
    """Costs of steps and cheapest paths on one mesh; tables are cached per tensor shape. Not thread-safe.

    Args:
        copy_bytes_per_s: rate of local copies; the device's memory bandwidth by default.
        kept: tables of an earlier model with the same step costs.
    """

    def __init__(
        self,
        network: NetworkModel,
        mesh: Mesh,
        copy_bytes_per_s: float | None = None,
        kept: BoxingTables | None = None,
    ) -> None:
        self.network, self.mesh = network, mesh
        self.copy_bytes_per_s = copy_bytes_per_s or network.cluster.device.memory_bandwidth_bytes_per_s
        kept = BoxingTables() if kept is None else kept
        self._tables, self._step_costs, self.known = kept.tables, kept.step_costs, kept.known
        self._ways: dict[tuple[int, bool], _StepActions] = {}

    @property
    def device(self) -> Device:
        return self.network.cluster.device

    def step_cost(self, step: BoxingStep, num_bytes: int, differentiable: bool) -> StepCost:
        key = (step, num_bytes, differentiable)
        if key not in self._step_costs:
            self._step_costs[key] = self.message_cost(step, message_bytes(step, num_bytes, self.mesh), differentiable)
        return self._step_costs[key]

    def message_cost(self, step: BoxingStep, message: int, differentiable: bool) -> StepCost:
        """Cost of a step whose message n is ``message`` bytes."""
        forward, backward, local = self.message_times_s(step, np.array([message], dtype=np.float64), differentiable)
        return StepCost(float(forward[0]), float(backward[0]), float(local[0]))

    def message_times_s(
        self,
        step: BoxingStep,
        messages: NDArray[np.float64],
        differentiable: bool,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Forward, backward and local seconds of a step, for many messages at once."""
        copy_s = self.device.op_overhead_s + 2 * messages / self.copy_bytes_per_s
        dims = (step.src_dim, step.dst_dim)
        times, local = [], np.full(messages.shape, RELABEL_S)
        for action, (src_dim, dst_dim) in (
            (step.forward, dims),
            (step.backward if differentiable else "none", dims[::-1]),
        ):
            if action in COLLECTIVES:
                times.append(self.network.times_s(action, messages, self.mesh.group_shape(step.axes)))
            else:
                times.append(np.zeros(messages.shape))
            copies = _num_copies(action, src_dim, dst_dim)
            local = local + copy_s * copies if copies else local
        return times[0], times[1], local

    def gathered_copies_s(
        self, messages: NDArray[np.float64], gradients: NDArray[np.float64], moved: NDArray[np.bool_]
    ) -> NDArray[np.float64]:
        """Local seconds of all-gathers of ``messages`` bytes and of the reduce-scatters of their ``gradients``.

        Where ``moved`` is set, the gathered dim is not the first and each direction takes a copy.
        """
        there_s, back_s = (
            self.device.op_overhead_s + 2 * sizes / self.copy_bytes_per_s for sizes in (messages, gradients)
        )
        return np.where(moved, RELABEL_S + there_s + back_s, RELABEL_S)

    def step_kind_times_s(
        self,
        steps: StepTable,
        messages: NDArray[np.float64],
        differentiable: bool,
        again: bool = False,
        shares: CostShares | None = None,
    ) -> NDArray[np.float64]:
        """Total seconds of a table's kinds of steps (rows) for many messages (columns).

        ``message_times_s`` gives the parts. ``again`` counts forward twice, the second time within backward (activation
        checkpointing).
        """
        ways = self._ways_of(steps, differentiable)
        copy_s = self.device.op_overhead_s + 2 * messages / self.copy_bytes_per_s
        times = np.zeros((1 + len(ways.collectives), len(messages)))
        for at, (action, shape) in enumerate(ways.collectives, start=1):
            times[at] = self.network.times_s(action, messages, shape)
        copies = ways.copies
        if shares is not None:
            return _weighted_times(ways, times, copy_s, shares, again=again)
        local: NDArray[np.float64] = RELABEL_S + copies[:, :1] * copy_s + copies[:, 1:] * copy_s
        ahead = times[ways.ahead]
        total: NDArray[np.float64] = ahead + times[ways.back] + local
        return total + (ahead + RELABEL_S + copies[:, :1] * copy_s) if again else total

    def _ways_of(self, steps: StepTable, differentiable: bool) -> _StepActions:
        key = id(steps), differentiable
        if key not in self._ways:
            self._ways[key] = _StepActions.of(steps, self.mesh, differentiable)
        return self._ways[key]

    def table(
        self,
        shape: tuple[int, ...],
        num_bytes: int,
        differentiable: bool,
        *,
        again: bool = False,
        shares: CostShares | None = None,
    ) -> BoxingTable:
        """Boxing table of one tensor.

        Args:
            again: the boxing is in a recomputed segment, where forward runs twice.
            shares: fractions of the cost that count.
        """
        key = (shape, num_bytes, differentiable, again, shares)
        if key not in self._tables:
            self._tables[key] = BoxingTable(self, *key)
        return self._tables[key]

    def plan(
        self, src: NdSbp, dst: NdSbp, shape: tuple[int, ...], num_bytes: int, differentiable: bool = True
    ) -> tuple[BoxingStep, ...]:
        """The cheapest steps from ``src`` to ``dst``, forward plus backward; ``()`` when they are equal."""
        return self.table(shape, num_bytes, differentiable).path(src, dst)


def _num_copies(action: str, src_dim: int, dst_dim: int) -> int:
    """Local copies of the message: collectives work on dim 0, so gathering or cutting another dim takes a copy."""
    if action in ("slice", "pad", "mask", "all_reduce"):
        return 1
    if action == "all_gather":
        return int(src_dim != 0)
    if action == "reduce_scatter":
        return int(dst_dim != 0)
    return int(src_dim != 0) + int(dst_dim != 0) if action == "all_to_all" else 0


def _weighted_times(
    ways: _StepActions, times: NDArray[np.float64], copy_s: NDArray[np.float64], shares: CostShares, *, again: bool
) -> NDArray[np.float64]:
    """``BoxingModel.kinds_times_s`` weighted by ``shares``."""
    levels = [0, *(level_of(shape) for _, shape in ways.collectives)]
    ahead_share, back_share = (
        np.array([each[level] for level in levels]) for each in (shares.forward, shares.backward)
    )
    ahead, back = times[ways.ahead], times[ways.back]
    copies_s = [ways.copies[:, at : at + 1] * copy_s for at in (0, 1)]
    total: NDArray[np.float64] = RELABEL_S + shares.forward_copies * copies_s[0] + shares.backward_copies * copies_s[1]
    total = total + ahead_share[ways.ahead][:, None] * ahead + back_share[ways.back][:, None] * back
    if again:
        total = total + RELABEL_S + back_share[ways.ahead][:, None] * ahead + shares.backward_copies * copies_s[0]
    return total


@dataclass(frozen=True, slots=True)
class _StepActions:
    """Actions of a table's kinds of steps.

    ``ahead`` and ``back`` index ``collectives`` from 1, with 0 for none; ``copies`` are local copies, (kinds, 2) for
    (forward, backward).
    """

    steps: StepTable
    collectives: tuple[tuple[str, tuple[int, ...]], ...]
    ahead: NDArray[np.int64]
    back: NDArray[np.int64]
    copies: NDArray[np.float64]

    @staticmethod
    def of(steps: StepTable, mesh: Mesh, differentiable: bool) -> _StepActions:
        places: dict[tuple[str, tuple[int, ...]], int] = {}
        gone: list[tuple[int, int]] = []
        copies: list[tuple[int, int]] = []
        for step in steps.kinds:
            backward, shape = step.backward if differentiable else "none", mesh.group_shape(step.axes)
            ahead, back = (
                places.setdefault((action, shape), 1 + len(places)) if action in COLLECTIVES else 0
                for action in (step.forward, backward)
            )
            gone.append((ahead, back))
            there = _num_copies(step.forward, step.src_dim, step.dst_dim)
            copies.append((there, _num_copies(backward, step.dst_dim, step.src_dim)))
        which = np.array(gone, dtype=np.int64).reshape(len(gone), 2)
        made = np.array(copies, dtype=np.float64).reshape(len(copies), 2)
        return _StepActions(steps, tuple(places), which[:, 0], which[:, 1], made)


class BoxingTable:
    """All-pairs cheapest boxing of one tensor; ``cost_s[i, j]`` is from ``layouts[i]`` to ``layouts[j]``.

    Paths may pass through layouts whose splits nest in another order than the mesh's; these follow ``layouts`` in
    ``stops``.

    Without a gradient, partial maxima and minima are among the layouts, after the first ``num_sums``. Partial sums of
    one-byte elements (bools, which have none, and integers that would overflow) have infinite cost.
    """

    def __init__(
        self,
        model: BoxingModel,
        shape: tuple[int, ...],
        num_bytes: int,
        differentiable: bool,
        again: bool = False,
        shares: CostShares | None = None,
    ) -> None:
        self.mesh, self.num_bytes = model.mesh, num_bytes
        sizes = {axis.size for axis in self.mesh.axes}
        dims = [dim for dim, size in enumerate(shape) if size > 1 and any(size % axis == 0 for axis in sizes)]
        self.states = (*(S(dim) for dim in dims), *((B, I, P) if differentiable else (B, P)))
        self._all_states = {
            state: at for at, state in enumerate((*self.states, *(() if differentiable else (PMAX, PMIN))))
        }
        steps = step_table(tuple(self._all_states), self.mesh)
        factors = steps.factors(self.mesh.shape)
        self._even = found = steps.even_steps((np.array(shape[: factors.shape[1]]) % factors == 0).all(axis=1))
        self.num_layouts, self.num_sums = found.num_plain, found.num_sums
        parts = factors.prod(axis=1)
        message = num_bytes // np.minimum(parts[steps.source[found.keep]], parts[steps.target[found.keep]])
        distinct, inverse = np.unique(message, return_inverse=True)
        seconds = model.step_kind_times_s(steps, distinct.astype(np.float64), differentiable, again, shares)
        self._step_s: NDArray[np.float64] = seconds[steps.kind[found.keep], inverse]
        if not differentiable and num_bytes == prod(shape):
            partial = (steps.numbers[found.chosen] == self._all_states[P]).any(axis=1)
            self._step_s[partial[found.source] | partial[found.target]] = np.inf
        self._rows: dict[int, NDArray[np.float64]] = {}
        self._weights = len(self._all_states) ** np.arange(self.mesh.ndim, dtype=np.int64)

    @property
    def num_cost_bytes(self) -> int:
        """Bytes of the cost arrays computed so far."""
        return self._step_s.nbytes + sum(row.nbytes for row in self._rows.values())

    @property
    def path_layouts(self) -> tuple[NdSbp, ...]:
        return self._even.all_layouts

    @property
    def layouts(self) -> tuple[NdSbp, ...]:
        return self._even.layouts

    @property
    def index(self) -> Mapping[NdSbp, int]:
        return self._even.index

    def costs_of(self, sources: NDArray[np.int64]) -> NDArray[np.float64]:
        """``cost_s[sources]``, without computing other rows."""
        wanted, inverse = unique_inverse(sources)
        return self._rows_of(wanted.tolist())[inverse, : self.num_layouts]

    def between(self, sources: NDArray[np.int64], targets: NDArray[np.int64]) -> NDArray[np.float64]:
        """``cost_s[sources, targets]``."""
        wanted, inverse = unique_inverse(sources)
        return self._rows_of(wanted.tolist())[inverse, targets]

    def _rows_of(self, sources: Sequence[int]) -> NDArray[np.float64]:
        """Seconds from some layouts to all stops, as (sources, stops)."""
        missing = [at for at in sources if at not in self._rows]
        if missing:
            self._rows.update(zip(missing, shortest_path_s(self._even, self._step_s, missing), strict=True))
        if not sources:
            return np.empty((0, len(self._even.chosen)))
        return np.array([self._rows[at] for at in sources])

    @cached_property
    def step_s(self) -> NDArray[np.float64]:
        """Seconds of the single step from ``layouts[i]`` to ``layouts[j]``; infinite where there is none."""
        found: NDArray[np.float64] = np.full((len(self._even.chosen),) * 2, np.inf)
        found[self._even.source, self._even.target] = self._step_s
        return found[: self.num_layouts, : self.num_layouts]

    @cached_property
    def cost_s(self) -> NDArray[np.float64]:
        return self.costs_of(np.arange(self.num_layouts))

    def ids(self, states: Sequence[Sbp], rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Indices of many layouts: ``rows[i, axis]`` selects one of ``states`` per axis; -1 if a layout is not even."""
        every = [self._all_states.get(state, -1) for state in states]
        codes = np.array(every, dtype=np.int64)[rows]
        if -1 not in every:
            found: NDArray[np.int64] = self._even.lookup[codes @ self._weights]
            return found
        known = (codes >= 0).all(axis=1)
        return np.where(known, self._even.lookup[np.where(known, codes @ self._weights, 0)], -1)

    def costs_from(self, src: NdSbp) -> NDArray[np.float64]:
        """Seconds from a layout to each of ``layouts``."""
        return self._rows_of([self._at(src)])[0, : self.num_layouts]

    def costs_to(self, dst: NdSbp) -> NDArray[np.float64]:
        """Seconds from each of ``layouts`` to a layout."""
        return np.asarray(self.cost_s[:, self._at(dst)])

    def path(self, src: NdSbp, dst: NdSbp) -> tuple[BoxingStep, ...]:
        start, at = self._at(src), self._at(dst)
        costs = self._rows_of([start])[0]
        order, ends, starts = self._even.by_target
        steps: list[BoxingStep] = []
        while at != start:
            if np.isinf(costs[at]):
                raise InputError("layout", f"{format_nd_sbp(src)} -> {format_nd_sbp(dst)}", "no boxing path exists")
            place = int(np.searchsorted(ends, at))
            into = order[starts[place] : starts[place + 1] if place + 1 < len(starts) else None]
            origins = self._even.source[into]
            before = int(origins[np.argmin(costs[origins] + self._step_s[into])])
            step = step_between(self.path_layouts[before], self.path_layouts[at], self.mesh)
            assert step is not None
            steps.append(step)
            at = before
        return tuple(reversed(steps))

    def _at(self, layout: NdSbp) -> int:
        if layout not in self.index:
            limit = "expected even splits in mesh order; Pmax and Pmin only alone and without a gradient"
            raise InputError("layout", format_nd_sbp(layout), limit)
        return self.index[layout]
