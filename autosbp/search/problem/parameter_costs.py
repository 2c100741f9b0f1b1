"""Costs of parameters: once-a-step seconds of gradients, optimizer and copies; and bytes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.memory import state_bytes_per_element
from autosbp.costmodel.network import level_of
from autosbp.costmodel.offload import optimizer_s
from autosbp.graph.ir import TensorMeta
from autosbp.plan.plan import BUCKET_BYTES
from autosbp.program.parameter_sharding import shard_dim, sharding_factors
from autosbp.sbp.layout import B, I, NdSbp, P, Sbp
from autosbp.search.problem.cost_weights import (
    CHEAPEST,
    FASTEST,
    GATHER_PER_USE,
    INNER,
    UNSHARDED,
    CostWeights,
    path_shares_of,
)
from autosbp.search.problem.layout_table import LayoutTable, LayoutTables, Rows

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class StorageCosts:
    """Costs of parameters per value: weighted seconds of a step, and bytes.

    ``gradients`` are part of ``memory``. ``often``, part of ``seconds``, are those that recur with every microbatch."""

    seconds: Floats
    memory: Floats
    gradients: Floats
    often: Floats

    def plus(self, other: StorageCosts) -> StorageCosts:
        """Sum of both."""
        return StorageCosts(
            self.seconds + other.seconds, self.memory + other.memory, self.gradients + other.gradients,
            self.often + other.often,
        )  # fmt: skip

    def of(self, mask: NDArray[np.bool_]) -> StorageCosts:
        """The costs of the values in ``mask``."""
        return StorageCosts(self.seconds[mask], self.memory[mask], self.gradients[mask], self.often[mask])


def zero_storage_costs(count: int) -> StorageCosts:
    """Zero costs of ``count`` values."""
    return StorageCosts(*np.zeros((4, count)))


class ParameterCosts:
    """Seconds per step and bytes of parameters, for many layouts at once.

    Args:
        storage: parameter sharding. ``as_used``; ``step`` or ``use``: the B axes of a layout are split in storage, if
            one all-gather restores the parameter (``program.parameter_sharding``), once a step or twice a microbatch;
            ``fastest``: the faster of ``as_used`` and ``step``; ``cheapest``: the least seconds and the least bytes of
            all, each by itself, which bound every strategy from below.
        message: bytes of a gradient message.
        offload: optimizer state is on the host.
        bucket_bytes: maximum gradient bucket size.
        placings: layout tables to share with other shardings of the same rows.
    """

    def __init__(
        self,
        compute: ComputeModel,
        boxing: BoxingModel,
        optimizer: str,
        num_micro: int,
        weights: CostWeights,
        storage: str,
        message: int,
        *,
        offload: bool = False,
        bucket_bytes: int = BUCKET_BYTES,
        placings: LayoutTables | None = None,
    ) -> None:
        self.bucket_bytes = bucket_bytes
        self.path_shares = path_shares_of(weights, boxing.mesh)
        self.layout_tables = placings or LayoutTables(boxing.mesh)
        self.compute, self.boxing, self.optimizer, self.offload = compute, boxing, optimizer, offload
        self.num_micro, self.weights, self.storage, self.message = num_micro, weights, storage, message
        self._is_split: dict[tuple[TensorMeta, NdSbp, str], bool] = {}

    def of(
        self,
        meta: TensorMeta,
        trained: bool,
        rows: Rows,
        states: Sequence[Sbp],
        storage: str | None = None,
        *,
        zone: str = INNER,
    ) -> StorageCosts:
        """Costs of a parameter used in ``states[rows[i, axis]]``; ``storage`` overrides that of the object.

        A frozen parameter costs only its bytes."""
        storage = storage or self.storage
        weights, placed = self.weights, self.layout_tables.of(rows, states)
        local = meta.num_bytes / placed.parts
        if not trained:
            none = np.zeros(len(rows))
            return StorageCosts(none, weights.state * local, none, none)
        seconds, memory = self._unsharded_costs(meta, local, placed, zone)
        share = _gradient_share(meta)
        gradients, often = share * local, np.zeros(len(rows))
        if storage != UNSHARDED:
            parts, copied_s = self._split_factors(meta, placed)
            apart_s, apart = self._split_costs(meta, local, parts, copied_s, placed, zone)
            if storage == CHEAPEST:
                seconds, memory = np.minimum(seconds, apart_s), np.minimum(memory, apart)
            else:
                chosen = (parts > 1) & ((storage != FASTEST) | (apart_s < seconds))
                seconds, memory = np.where(chosen, apart_s, seconds), np.where(chosen, apart, memory)
                copies = 0.0 if storage == GATHER_PER_USE else local
                gradients = np.where(chosen, share * (local / parts + copies), gradients)
                if storage == GATHER_PER_USE:
                    once_s = weights.once * self._optimizer_s(meta, local / parts)
                    often = np.where(chosen, apart_s - once_s, often)
        return StorageCosts(seconds, weights.state * memory, weights.state * gradients, often)

    def is_stored_split(self, meta: TensorMeta, used: NdSbp, *, zone: str = INNER) -> bool:
        """Whether a trained parameter that is used in this layout is stored split."""
        key = meta, used, zone
        if key not in self._is_split:
            self._is_split[key] = self._splits(meta, used, zone)
        return self._is_split[key]

    def _splits(self, meta: TensorMeta, used: NdSbp, zone: str) -> bool:
        if self.storage == UNSHARDED or shard_dim(meta.sizes, used, self.boxing.mesh) is None:
            return False
        if self.storage != FASTEST:
            return True
        placed = self.layout_tables.single(used)
        local = meta.num_bytes / placed.parts
        apart_s, _ = self._split_costs(meta, local, *self._split_factors(meta, placed), placed, zone)
        return bool(apart_s[0] < self._unsharded_costs(meta, local, placed, zone)[0][0])

    def gathered_s(self, meta: TensorMeta, used: NdSbp, *, zone: str = INNER) -> float:
        """Weighted seconds a step to all-gather a parameter and reduce-scatter its gradient, if storage splits its B axes.

        Infinite if storage does not split it."""
        placed = self.layout_tables.single(used)
        parts, copied_s = self._split_factors(meta, placed)
        if parts[0] == 1:
            return math.inf
        local = meta.num_bytes / placed.parts
        gather = self._collective_s("all_gather", local, placed)
        scatter = self._collective_s("reduce_scatter", _gradient_share(meta) * local, placed)
        weights = self.weights
        moved = gather[0] * self._message_weights(placed, weights.gathered, zone)[0]
        moved += scatter[0] * self._message_weights(placed, weights.reduced, zone)[0]
        return float(weights.once * (weights.local_copy_weight() * copied_s[0] + moved))

    def _message_weights(self, placed: LayoutTable, weigh: Callable[[int, str], float], zone: str) -> Floats:
        """Weights of messages over the B axes of layouts, by the slowest links that they cross."""
        found = np.zeros(len(placed.rows))
        for shape, chosen in placed.replicated_groups:
            found[chosen] = weigh(level_of(shape), zone)
        return found

    def _unsharded_costs(
        self, meta: TensorMeta, local: Floats, placed: LayoutTable, zone: str
    ) -> tuple[Floats, Floats]:
        """Stored as used, with P stored whole: gradients are all-reduced over the B axes."""
        own, path, reduced, memory = self._cached(
            "as_used", meta, placed, lambda: self._unsharded_components(meta, local, placed)
        )
        weights = self.weights
        counted = reduced * self._message_weights(placed, weights.reduced, zone)
        return weights.once * (own + path + counted), memory

    def _unsharded_components(
        self, meta: TensorMeta, local: Floats, placed: LayoutTable
    ) -> tuple[Floats, Floats, Floats, Floats]:
        """Seconds of the optimizer, of paths to the use and back, and of reductions; and bytes."""
        rows, states = placed.rows, placed.states
        reduced = np.array([sbp == B for sbp in states], dtype=bool)[rows]
        gradient = _gradient_share(meta) * local
        seconds, reduced_s = self._optimizer_s(meta, local), self._collective_s("all_reduce", gradient, placed)
        stored = tuple(I if sbp == P else sbp for sbp in states)
        copies, path_s = np.zeros((2, len(rows)))
        if stored != states:
            table = self.boxing.table(meta.sizes, meta.num_bytes, True, shares=self.path_shares)
            ids = table.ids(stored, rows), table.ids(states, rows)
            path_s = table.between(*ids)
            copies = (local + gradient) * (ids[0] != ids[1])
        # Gradients of several microbatches are accumulated outside the bucket in which they are reduced.
        buffers = gradient * (reduced.any(axis=1) & (gradient <= self.bucket_bytes) & (self.num_micro > 1))
        return seconds, path_s, reduced_s, self._state(meta, local) + copies + buffers

    def _split_costs(
        self, meta: TensorMeta, local: Floats, parts: Floats, copied_s: Floats, placed: LayoutTable, zone: str
    ) -> tuple[Floats, Floats]:
        """Stored split in ``parts`` over B axes: parameters are gathered and gradients reduce-scattered, with local copies."""
        over, gradient = self._collective_s, _gradient_share(meta) * local
        own_s, gather, scatter, state = self._cached(
            "split", meta, placed, lambda: (
                self._optimizer_s(meta, local / parts), over("all_gather", local, placed),
                over("reduce_scatter", gradient, placed), self._state(meta, local / parts),
            ),
        )  # fmt: skip
        weights = self.weights
        ahead, back = (self._message_weights(placed, weigh, zone) for weigh in (weights.gathered, weights.reduced))
        copied_s = weights.local_copy_weight() * copied_s
        own_s = weights.once * own_s
        if self.storage == GATHER_PER_USE:
            return own_s + weights.micro * ((ahead + back) * gather + back * scatter + 2.0 * copied_s), state
        copies = 0.0 if self.storage == CHEAPEST else local + gradient
        return own_s + weights.once * (ahead * gather + back * scatter + copied_s), state + copies

    def _cached(
        self, what: str, meta: TensorMeta, placed: LayoutTable, make: Callable[[], tuple[Floats, ...]]
    ) -> tuple[Floats, ...]:
        """Unweighted costs, cached for problems of other microbatches, stage shares and parameter shardings."""
        host = self.boxing.network.cluster.host if self.offload else None
        device = self.compute.device.op_overhead_s, self.compute.copy_bytes_per_s, host
        shares = self.path_shares if what == "as_used" else None
        key = (
            what, meta, placed.key, shares, device, self.optimizer, self.bucket_bytes, self.message, self.num_micro > 1,
            self.offload,
        )  # fmt: skip
        known = self.boxing.known
        if key not in known:
            known[key] = make()
        found: tuple[Floats, ...] = known[key]
        return found

    def _collective_s(self, kind: str, local: Floats, placed: LayoutTable) -> Floats:
        """Seconds of a collective over the axes on which a layout is B."""
        seconds = np.zeros(len(placed.rows))
        for shape, chosen in placed.replicated_groups:
            seconds[chosen] = self.boxing.network.shared_times_s(kind, local[chosen], self.message, shape)
        return seconds

    def _optimizer_s(self, meta: TensorMeta, local: Floats) -> Floats:
        cluster = self.boxing.network.cluster
        return optimizer_s(self.compute, cluster, self.optimizer, local, meta, offload=self.offload)

    def _state(self, meta: TensorMeta, local: Floats) -> Floats:
        elements = local / (meta.num_bytes / prod(meta.sizes))
        bytes_: Floats = elements * state_bytes_per_element(meta, self.optimizer, offload=self.offload)
        return bytes_

    def _split_factors(self, meta: TensorMeta, placed: LayoutTable) -> tuple[Floats, Floats]:
        """Parts into which storage splits what ranks would hold alike; and seconds of local copies there and back.

        1 part where storage does not split it."""
        mesh, known, rows, states = self.boxing.mesh, self.boxing.known, placed.rows, placed.states
        key = ("apart", meta.sizes, meta.num_bytes, meta.gradient_bytes, placed.key)
        if key in known:
            found: tuple[Floats, Floats] = known[key]
            return found
        codes = rows @ (len(states) ** np.arange(mesh.ndim, dtype=np.int64))
        _, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
        parts, dims = sharding_factors(meta.sizes, rows[first], states, mesh)
        local = meta.num_bytes // placed.parts[first]
        gradient = meta.gradient_bytes // placed.parts[first]
        copied_s = np.where(dims >= 0, self.boxing.gathered_copies_s(local, gradient, dims > 0), 0.0)
        known[key] = parts[inverse], copied_s[inverse]
        return parts[inverse], copied_s[inverse]


def _gradient_share(meta: TensorMeta) -> float:
    """Bytes of a parameter's gradient over those of the parameter."""
    return meta.gradient_bytes / meta.num_bytes if meta.num_bytes else 1.0
