"""What a parameter costs a search: once a step its gradient's way, its optimizer step and its copies; and its bytes."""

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
from autosbp.graph.ir import DTYPE_BYTES, TensorMeta
from autosbp.plan import BUCKET_BYTES
from autosbp.sbp.placement import B, I, NdSbp, P, Sbp
from autosbp.sbp.storage import gathered_parts, split_dim
from autosbp.search.problem.placed import Placed, Placings, Rows
from autosbp.search.problem.weights import AS_USED, CHEAPEST, FASTEST, INNER, USE, Weights, path_shares_of

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Stored:
    """Weighted seconds of a step, bytes, and those of gradients among them; and the seconds that pass ``often``, with every
    microbatch, among all."""

    seconds: Floats
    memory: Floats
    gradients: Floats
    often: Floats

    def plus(self, other: Stored) -> Stored:
        """Of both."""
        return Stored(
            self.seconds + other.seconds, self.memory + other.memory, self.gradients + other.gradients,
            self.often + other.often,
        )  # fmt: skip

    def of(self, mask: NDArray[np.bool_]) -> Stored:
        """Some of the values."""
        return Stored(self.seconds[mask], self.memory[mask], self.gradients[mask], self.often[mask])


def none_stored(count: int) -> Stored:
    """Of so many values, of nothing."""
    return Stored(*np.zeros((4, count)))


class ParameterCosts:
    """Seconds per step and bytes of parameters in many layouts at once.

    Args:
        storage: ``as_used``; ``step`` or ``use``: B axes of a layout are split in storage where one all-gather brings the
            parameter together (``sbp.storage``), once a step or twice a microbatch; ``fastest``: the faster of ``as_used``
            and ``step``; ``cheapest``: of all the least seconds and the least bytes, each for itself, which no strategy
            goes below.
        offload: optimizer state is on the host.
        bucket_bytes: the most that gradients are reduced in together.
        placings: of those that cost the same rows in other ways.
    """

    def __init__(
        self,
        compute: ComputeModel,
        boxing: BoxingModel,
        optimizer: str,
        num_micro: int,
        weights: Weights,
        storage: str,
        message: int,
        *,
        offload: bool = False,
        bucket_bytes: int = BUCKET_BYTES,
        placings: Placings | None = None,
    ) -> None:
        self.bucket_bytes = bucket_bytes
        self.path_shares = path_shares_of(weights, boxing.mesh)
        self.placings = placings or Placings(boxing.mesh)
        self.compute, self.boxing, self.optimizer, self.offload = compute, boxing, optimizer, offload
        self.num_micro, self.weights, self.storage, self.message = num_micro, weights, storage, message
        self._apart_of: dict[tuple[TensorMeta, NdSbp, str], bool] = {}

    def of(
        self,
        meta: TensorMeta,
        trained: bool,
        rows: Rows,
        states: Sequence[Sbp],
        storage: str | None = None,
        *,
        zone: str = INNER,
    ) -> Stored:
        """Of a parameter used in ``states[rows[i, axis]]``, stored as ``storage`` says where it is given. A frozen one
        has its bytes alone."""
        storage = storage or self.storage
        weights, placed = self.weights, self.placings.of(rows, states)
        local = meta.num_bytes / placed.parts
        if not trained:
            none = np.zeros(len(rows))
            return Stored(none, weights.state * local, none, none)
        seconds, memory = self._as_used(meta, local, placed, zone)
        gradients, often = local, np.zeros(len(rows))
        if storage != AS_USED:
            parts, copied_s = self._parts(meta, placed)
            apart_s, apart = self._apart(meta, local, parts, copied_s, placed, zone)
            if storage == CHEAPEST:
                seconds, memory = np.minimum(seconds, apart_s), np.minimum(memory, apart)
            else:
                chosen = (parts > 1) & ((storage != FASTEST) | (apart_s < seconds))
                seconds, memory = np.where(chosen, apart_s, seconds), np.where(chosen, apart, memory)
                copies = 0.0 if storage == USE else local
                gradients = np.where(chosen, local / parts + copies, gradients)
                if storage == USE:
                    once_s = weights.once * self._optimizer_s(meta, local / parts)
                    often = np.where(chosen, apart_s - once_s, often)
        return Stored(seconds, weights.state * memory, weights.state * gradients, often)

    def splits(self, meta: TensorMeta, used: NdSbp, *, zone: str = INNER) -> bool:
        """Whether a trained parameter that is used so is stored apart."""
        key = meta, used, zone
        if key not in self._apart_of:
            self._apart_of[key] = self._splits(meta, used, zone)
        return self._apart_of[key]

    def _splits(self, meta: TensorMeta, used: NdSbp, zone: str) -> bool:
        if self.storage == AS_USED or split_dim(meta.sizes, used, self.boxing.mesh) is None:
            return False
        if self.storage != FASTEST:
            return True
        placed = self.placings.single(used)
        local = meta.num_bytes / placed.parts
        apart_s, _ = self._apart(meta, local, *self._parts(meta, placed), placed, zone)
        return bool(apart_s[0] < self._as_used(meta, local, placed, zone)[0][0])

    def gathered_s(self, meta: TensorMeta, used: NdSbp, *, zone: str = INNER) -> float:
        """Weighted seconds of bringing a parameter together for its use, and its gradient back, once a step, where storage
        splits it over the axes on which it is B; infinite where it does not."""
        placed = self.placings.single(used)
        parts, copied_s = self._parts(meta, placed)
        if parts[0] == 1:
            return math.inf
        local = meta.num_bytes / placed.parts
        gather, scatter = (self._over_b(kind, local, placed) for kind in ("all_gather", "reduce_scatter"))
        weights = self.weights
        moved = gather[0] * self._counts(placed, weights.gathered, zone)[0]
        moved += scatter[0] * self._counts(placed, weights.reduced, zone)[0]
        return float(weights.once * (weights.copies() * copied_s[0] + moved))

    def _counts(self, placed: Placed, weigh: Callable[[int, str], float], zone: str) -> Floats:
        """What messages over the B axes of layouts count, by the slowest links that they cross."""
        found = np.zeros(len(placed.rows))
        for shape, chosen in placed.over_b:
            found[chosen] = weigh(level_of(shape), zone)
        return found

    def _as_used(self, meta: TensorMeta, local: Floats, placed: Placed, zone: str) -> tuple[Floats, Floats]:
        """Stored as used, P whole: gradients of B axes are all-reduced."""
        own, path, reduced, memory = self._known("as_used", meta, placed, lambda: self._used(meta, local, placed))
        weights = self.weights
        counted = reduced * self._counts(placed, weights.reduced, zone)
        return weights.once * (own + path + counted), memory

    def _used(self, meta: TensorMeta, local: Floats, placed: Placed) -> tuple[Floats, Floats, Floats, Floats]:
        """Seconds of the optimizer, of paths to the use and back, and of reductions; and bytes."""
        rows, states = placed.rows, placed.states
        reduced = np.array([sbp == B for sbp in states], dtype=bool)[rows]
        seconds, reduced_s = self._optimizer_s(meta, local), self._over_b("all_reduce", local, placed)
        stored = tuple(I if sbp == P else sbp for sbp in states)
        copies, path_s = np.zeros((2, len(rows)))
        if stored != states:
            table = self.boxing.table(meta.sizes, meta.num_bytes, True, shares=self.path_shares)
            ids = table.ids(stored, rows), table.ids(states, rows)
            path_s = table.between(*ids)
            copies = 2.0 * local * (ids[0] != ids[1])
        # Gradients of several microbatches are added up beside the buffer that they are reduced in.
        buffers = local * (reduced.any(axis=1) & (local <= self.bucket_bytes) & (self.num_micro > 1))
        return seconds, path_s, reduced_s, self._state(meta, local) + copies + buffers

    def _apart(
        self, meta: TensorMeta, local: Floats, parts: Floats, copied_s: Floats, placed: Placed, zone: str
    ) -> tuple[Floats, Floats]:
        """Stored split in ``parts`` over B axes: gathered, and gradients reduce-scattered, with local copies."""
        over = self._over_b
        own_s, gather, scatter, state = self._known(
            "split", meta, placed, lambda: (
                self._optimizer_s(meta, local / parts), over("all_gather", local, placed),
                over("reduce_scatter", local, placed), self._state(meta, local / parts),
            ),
        )  # fmt: skip
        weights = self.weights
        ahead, back = (self._counts(placed, weigh, zone) for weigh in (weights.gathered, weights.reduced))
        copied_s = weights.copies() * copied_s
        own_s = weights.once * own_s
        if self.storage == USE:
            return own_s + weights.micro * ((ahead + back) * gather + back * scatter + 2.0 * copied_s), state
        copies = 0.0 if self.storage == CHEAPEST else 2.0 * local
        return own_s + weights.once * (ahead * gather + back * scatter + copied_s), state + copies

    def _known(
        self, what: str, meta: TensorMeta, placed: Placed, make: Callable[[], tuple[Floats, ...]]
    ) -> tuple[Floats, ...]:
        """What problems of other microbatches, stages' shares and ways to store have in common: before it is weighed."""
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

    def _over_b(self, kind: str, local: Floats, placed: Placed) -> Floats:
        """Seconds of a collective over the axes on which a layout is B."""
        seconds = np.zeros(len(placed.rows))
        for shape, chosen in placed.over_b:
            seconds[chosen] = self.boxing.network.shared_times_s(kind, local[chosen], self.message, shape)
        return seconds

    def _optimizer_s(self, meta: TensorMeta, local: Floats) -> Floats:
        cluster, width = self.boxing.network.cluster, DTYPE_BYTES[meta.dtype]
        return optimizer_s(self.compute, cluster, self.optimizer, local, width, offload=self.offload)

    def _state(self, meta: TensorMeta, local: Floats) -> Floats:
        elements = local / (meta.num_bytes / prod(meta.sizes))
        bytes_: Floats = elements * state_bytes_per_element(meta, self.optimizer, offload=self.offload)
        return bytes_

    def _parts(self, meta: TensorMeta, placed: Placed) -> tuple[Floats, Floats]:
        """Into how many parts storage splits what ranks would hold alike, 1 where it does not; and the seconds of local
        copies on the way there and back."""
        mesh, known, rows, states = self.boxing.mesh, self.boxing.known, placed.rows, placed.states
        key = ("apart", meta.sizes, meta.num_bytes, placed.key)
        if key in known:
            found: tuple[Floats, Floats] = known[key]
            return found
        codes = rows @ (len(states) ** np.arange(mesh.ndim, dtype=np.int64))
        _, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
        parts, dims = gathered_parts(meta.sizes, rows[first], states, mesh)
        local = meta.num_bytes // placed.parts[first]
        copied_s = np.where(dims >= 0, self.boxing.gathered_copies_s(local, dims > 0), 0.0)
        known[key] = parts[inverse], copied_s[inverse]
        return parts[inverse], copied_s[inverse]
