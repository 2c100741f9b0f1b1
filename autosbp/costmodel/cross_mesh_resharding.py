"""Cheapest resharding of a tensor from one mesh to another: pipeline stages, programs on several device sets.

The tensor is boxed on the source mesh to an intermediate layout, sent between devices (``costmodel.p2p_cost``), and
boxed on the destination mesh from another intermediate layout: sending slices and gathering them can be cheaper than
sending copies. The search covers all pairs of intermediate layouts. Backward is the reverse, with the layouts of
gradients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, prod

import numpy as np
from numpy.typing import NDArray

from autosbp.costmodel.boxing import BoxingModel, BoxingTable
from autosbp.costmodel.network import NetworkModel
from autosbp.costmodel.p2p_cost import LayoutCounts, LinkModel, P2PTransfer
from autosbp.graph.ir import DTYPE_BYTES, FLOATS
from autosbp.program.cross_mesh_resharding import TransferPiece, remote_messages
from autosbp.program.placed_mesh import PlacedMesh
from autosbp.sbp.boxing import BoxingStep
from autosbp.sbp.layout import B, NdSbp, gradient_sbp


@dataclass(frozen=True, slots=True)
class TransferPlan:
    """Steps and messages of one transfer.

    ``prepare`` boxes on ``src_mesh`` from ``src`` to ``sent``, ``forward`` sends to ``received`` on ``dst_mesh``, and
    ``finish`` boxes to ``dst``. ``backward`` sends gradients from ``received`` to ``sent``; it is empty without a
    gradient.
    """

    shape: tuple[int, ...]
    dtype: str
    src: NdSbp
    src_mesh: PlacedMesh
    dst: NdSbp
    dst_mesh: PlacedMesh
    sent: NdSbp
    received: NdSbp
    prepare: tuple[BoxingStep, ...]
    forward: tuple[TransferPiece, ...]
    backward: tuple[TransferPiece, ...]
    finish: tuple[BoxingStep, ...]
    differentiable: bool
    total_s: float

    def message_bytes(self, phase: str) -> Mapping[tuple[int, int], int]:
        """Bytes of every message of a phase (``forward`` or ``backward``), keyed by (sending device, receiving device)."""
        meshes = (self.src_mesh, self.dst_mesh)
        found = (
            remote_messages(self.forward, *meshes)
            if phase == "forward"
            else remote_messages(self.backward, *meshes[::-1])
        )
        return {
            key: DTYPE_BYTES[self.dtype] * sum(piece.block.num_elements for piece in pieces)
            for key, pieces in found.items()
        }


class TransferModel:
    """Plans the cheapest transfers over one network and caches the boxing tables of every mesh. Not thread-safe."""

    def __init__(self, network: NetworkModel, copy_bytes_per_s: float | None = None) -> None:
        self.network = network
        self.copy_bytes_per_s = copy_bytes_per_s or network.cluster.device.memory_bandwidth_bytes_per_s
        self.links = LinkModel(network, self.copy_bytes_per_s)
        self._boxing: dict[PlacedMesh, BoxingModel] = {}

    def boxing(self, mesh: PlacedMesh) -> BoxingModel:
        if mesh not in self._boxing:
            self._boxing[mesh] = BoxingModel(self.network, mesh, self.copy_bytes_per_s)
        return self._boxing[mesh]

    def plan(
        self,
        src: NdSbp,
        src_mesh: PlacedMesh,
        dst: NdSbp,
        dst_mesh: PlacedMesh,
        shape: tuple[int, ...],
        dtype: str,
        differentiable: bool = True,
    ) -> TransferPlan:
        """Find the cheapest pair of intermediate layouts, forward plus backward; ties go to the first.

        Args:
            src, dst: layouts on ``src_mesh`` and ``dst_mesh``, whose devices are the network's.
            shape, dtype: of the whole tensor; only floats have gradients.

        Raises:
            InputError: a layout does not split the tensor evenly.
        """
        differentiable = differentiable and dtype in FLOATS
        num_bytes = DTYPE_BYTES[dtype] * prod(shape)
        one, two = (self.boxing(mesh).table(shape, num_bytes, differentiable) for mesh in (src_mesh, dst_mesh))
        search = _Search(self.links, shape, DTYPE_BYTES[dtype], (src_mesh, dst_mesh), differentiable)
        total_s, sent, received = search.run(one, src, two, dst)
        forward = search.forward_transfer(sent, received)
        backward = search.backward_transfer(sent, received) if differentiable else P2PTransfer((), 0.0)
        return TransferPlan(
            *(shape, dtype, src, src_mesh, dst, dst_mesh, sent, received),
            prepare=one.path(src, sent),
            forward=forward.pieces,
            backward=backward.pieces,
            finish=two.path(received, dst),
            differentiable=differentiable,
            total_s=total_s,
        )


class _Search:
    """Search for the best pair of intermediate layouts for one tensor between two meshes."""

    def __init__(
        self,
        links: LinkModel,
        shape: tuple[int, ...],
        size: int,
        meshes: tuple[PlacedMesh, PlacedMesh],
        differentiable: bool,
    ) -> None:
        self.links, self.shape, self.size, self.meshes = links, shape, size, meshes
        self.differentiable = differentiable
        self._known: dict[tuple[bool, NdSbp, NdSbp], P2PTransfer] = {}

    def run(self, one: BoxingTable, src: NdSbp, two: BoxingTable, dst: NdSbp) -> tuple[float, NdSbp, NdSbp]:
        """Seconds and layouts of the best pair, without partial maxima and minima.

        Pairs are tried by increasing lower bound until the bound reaches the best cost.
        """
        before, after = one.costs_from(src)[: one.num_sums], two.costs_to(dst)[: two.num_sums]
        least_s = (
            before[:, None] + after + self._lower_bounds_s(one.layouts[: one.num_sums], two.layouts[: two.num_sums])
        )
        best, chosen = inf, (one.layouts[0], two.layouts[0])
        for at in np.argsort(least_s, axis=None, kind="stable"):
            i, j = divmod(int(at), len(after))
            if least_s[i, j] >= best:
                break
            sent, received = one.layouts[i], two.layouts[j]
            seconds = float(before[i] + after[j]) + self.forward_transfer(sent, received).seconds
            if self.differentiable and seconds < best:
                seconds += self.backward_transfer(sent, received).seconds
            if seconds < best:
                best, chosen = seconds, (sent, received)
        return best, *chosen

    def forward_transfer(self, sent: NdSbp, received: NdSbp) -> P2PTransfer:
        return self._delivery(False, _value(sent), _value(received))

    def backward_transfer(self, sent: NdSbp, received: NdSbp) -> P2PTransfer:
        return self._delivery(True, _gradient(received), _gradient(sent))

    def _delivery(self, back: bool, src: NdSbp, dst: NdSbp) -> P2PTransfer:
        key = (back, src, dst)
        if key not in self._known:
            here, there = self.meshes[::-1] if back else self.meshes
            self._known[key] = self.links.plan_transfer(self.shape, self.size, src, here, dst, there)
        return self._known[key]

    def _lower_bounds_s(self, sent: tuple[NdSbp, ...], received: tuple[NdSbp, ...]) -> NDArray[np.float64]:
        here, there = self.meshes

        def counts(layouts: list[NdSbp], mesh: PlacedMesh) -> LayoutCounts:
            return LayoutCounts.of(self.shape, self.size, layouts, mesh)

        least = self.links.transfer_lower_bound_s(
            counts(list(map(_value, sent)), here), counts(list(map(_value, received)), there)
        )
        if not self.differentiable:
            return least
        back = self.links.transfer_lower_bound_s(
            counts(list(map(_gradient, received)), there), counts(list(map(_gradient, sent)), here)
        )
        return least + back.T


def _value(layout: NdSbp) -> NdSbp:
    """Layout of the forward value: I holds the same as B."""
    return tuple(B if sbp.is_replicated else sbp for sbp in layout)


def _gradient(layout: NdSbp) -> NdSbp:
    return tuple(gradient_sbp(sbp) for sbp in layout)
