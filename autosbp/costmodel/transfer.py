"""The cheapest hand-over of a tensor from one mesh to another: pipeline stages, programs on several device sets.

Boxing on the source mesh to a middle layout, messages between devices (``costmodel.deliveries``), boxing on the
destination mesh from another middle layout: send slices and gather them, rather than send copies. All pairs of middle
layouts are searched. Backward is the same in reverse, with the layouts of gradients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, prod

import numpy as np
from numpy.typing import NDArray

from autosbp.costmodel.boxing import BoxingModel, BoxingTable
from autosbp.costmodel.deliveries import Counts, Delivery, LinkModel
from autosbp.costmodel.network import NetworkModel
from autosbp.graph.ir import DTYPE_BYTES, FLOATS
from autosbp.sbp.boxing import Step
from autosbp.sbp.placed_mesh import PlacedMesh
from autosbp.sbp.placement import B, NdSbp, gradient
from autosbp.sbp.transfer import Piece, messages


@dataclass(frozen=True, slots=True)
class TransferPlan:
    """``prepare`` leads on ``src_mesh`` from ``src`` to ``sent``, ``forward`` takes it to ``received`` on ``dst_mesh``,
    and ``finish`` to ``dst``. ``backward`` takes gradients from ``received`` to ``sent``; empty without a gradient."""

    shape: tuple[int, ...]
    dtype: str
    src: NdSbp
    src_mesh: PlacedMesh
    dst: NdSbp
    dst_mesh: PlacedMesh
    sent: NdSbp
    received: NdSbp
    prepare: tuple[Step, ...]
    forward: tuple[Piece, ...]
    backward: tuple[Piece, ...]
    finish: tuple[Step, ...]
    differentiable: bool
    total_s: float

    def message_bytes(self, phase: str) -> Mapping[tuple[int, int], int]:
        """Bytes of every message of a phase (``forward`` or ``backward``), by sending and receiving device."""
        meshes = (self.src_mesh, self.dst_mesh)
        found = messages(self.forward, *meshes) if phase == "forward" else messages(self.backward, *meshes[::-1])
        return {
            key: DTYPE_BYTES[self.dtype] * sum(piece.block.num_elements for piece in pieces)
            for key, pieces in found.items()
        }


def plan_transfer(
    src: NdSbp,
    src_mesh: PlacedMesh,
    dst: NdSbp,
    dst_mesh: PlacedMesh,
    shape: tuple[int, ...],
    dtype: str,
    network: NetworkModel,
    *,
    differentiable: bool = True,
) -> TransferPlan:
    """The cheapest transfer over ``network``; see ``TransferModel.plan``."""
    return TransferModel(network).plan(src, src_mesh, dst, dst_mesh, shape, dtype, differentiable)


class TransferModel:
    """The cheapest transfers over one network; keeps the boxing tables of every mesh. Not safe across threads."""

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
        """The cheapest over all pairs of middle layouts, forward plus backward; the first of equals.

        Args:
            src, dst: layouts on ``src_mesh`` and ``dst_mesh``, whose devices are the network's.
            shape, dtype: of the whole tensor; other than floats have no gradient.

        Raises:
            InputError: where a layout does not split the tensor evenly.
        """
        differentiable = differentiable and dtype in FLOATS
        num_bytes = DTYPE_BYTES[dtype] * prod(shape)
        one, two = (self.boxing(mesh).table(shape, num_bytes, differentiable) for mesh in (src_mesh, dst_mesh))
        search = _Search(self.links, shape, DTYPE_BYTES[dtype], (src_mesh, dst_mesh), differentiable)
        total_s, sent, received = search.run(one, src, two, dst)
        forward = search.deliver(sent, received)
        backward = search.deliver_back(sent, received) if differentiable else Delivery((), 0.0)
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
    """The best pair of middle layouts for one tensor between two meshes."""

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
        self._known: dict[tuple[bool, NdSbp, NdSbp], Delivery] = {}

    def run(self, one: BoxingTable, src: NdSbp, two: BoxingTable, dst: NdSbp) -> tuple[float, NdSbp, NdSbp]:
        """Seconds and layouts of the best pair; neither has partial maxima or minima. Pairs are tried in the order of
        what they take at least, until that is more than the best found."""
        before, after = one.costs_from(src)[: one.num_sums], two.costs_to(dst)[: two.num_sums]
        least_s = before[:, None] + after + self._least_s(one.layouts[: one.num_sums], two.layouts[: two.num_sums])
        best, chosen = inf, (one.layouts[0], two.layouts[0])
        for at in np.argsort(least_s, axis=None, kind="stable"):
            i, j = divmod(int(at), len(after))
            if least_s[i, j] >= best:
                break
            sent, received = one.layouts[i], two.layouts[j]
            seconds = float(before[i] + after[j]) + self.deliver(sent, received).seconds
            if self.differentiable and seconds < best:
                seconds += self.deliver_back(sent, received).seconds
            if seconds < best:
                best, chosen = seconds, (sent, received)
        return best, *chosen

    def deliver(self, sent: NdSbp, received: NdSbp) -> Delivery:
        return self._delivery(False, _value(sent), _value(received))

    def deliver_back(self, sent: NdSbp, received: NdSbp) -> Delivery:
        return self._delivery(True, _gradient(received), _gradient(sent))

    def _delivery(self, back: bool, src: NdSbp, dst: NdSbp) -> Delivery:
        key = (back, src, dst)
        if key not in self._known:
            here, there = self.meshes[::-1] if back else self.meshes
            self._known[key] = self.links.deliver(self.shape, self.size, src, here, dst, there)
        return self._known[key]

    def _least_s(self, sent: tuple[NdSbp, ...], received: tuple[NdSbp, ...]) -> NDArray[np.float64]:
        here, there = self.meshes

        def counts(layouts: list[NdSbp], mesh: PlacedMesh) -> Counts:
            return Counts.of(self.shape, self.size, layouts, mesh)

        least = self.links.least_s(counts(list(map(_value, sent)), here), counts(list(map(_value, received)), there))
        if not self.differentiable:
            return least
        back = self.links.least_s(
            counts(list(map(_gradient, received)), there), counts(list(map(_gradient, sent)), here)
        )
        return least + back.T


def _value(layout: NdSbp) -> NdSbp:
    """Forward, I is B."""
    return tuple(B if sbp.is_replicated else sbp for sbp in layout)


def _gradient(layout: NdSbp) -> NdSbp:
    return tuple(gradient(sbp) for sbp in layout)
