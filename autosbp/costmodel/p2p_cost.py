"""Time of the P2P messages that move a tensor between meshes (``program.cross_mesh_resharding``).

A message takes alpha + n beta. Messages in one direction over one link are sequential; a link connects a node to other
nodes, or a device to others of its node. The time is that of the busiest link plus the copies into and out of messages
on the busiest devices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from autosbp.costmodel.network import AlphaBeta, NetworkModel
from autosbp.program.cross_mesh_resharding import TransferPiece, plan_pieces, remote_messages
from autosbp.program.placed_mesh import PlacedMesh, link_level, unit, units_of
from autosbp.sbp.layout import NdSbp, shard_counts

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class P2PTransfer:
    """Pieces sent from one mesh to another, and their seconds."""

    pieces: tuple[TransferPiece, ...]
    seconds: float


class LinkModel:
    """Times of P2P transfers over one network."""

    def __init__(self, network: NetworkModel, copy_bytes_per_s: float) -> None:
        self.copy_bytes_per_s, self.overhead_s = copy_bytes_per_s, network.cluster.device.op_overhead_s
        self._counts = tuple(level.count for level in network.cluster.levels)
        self._links = tuple(_link(network, level, self._counts) for level in range(len(self._counts)))

    def plan_transfer(
        self, shape: tuple[int, ...], size: int, src: NdSbp, src_mesh: PlacedMesh, dst: NdSbp, dst_mesh: PlacedMesh
    ) -> P2PTransfer:
        """The pieces of a tensor with elements of ``size`` bytes.

        Source replicas either each send a part of what a rank needs, or serve ranks in turns, whichever is faster.
        """
        found = []
        for cut in (False, True):
            pieces = plan_pieces(shape, src, src_mesh, dst, dst_mesh, cut=cut)
            found.append(P2PTransfer(pieces, self.seconds(pieces, size, src_mesh, dst_mesh)))
        return min(found, key=lambda delivery: delivery.seconds)

    def seconds(self, pieces: Sequence[TransferPiece], size: int, src_mesh: PlacedMesh, dst_mesh: PlacedMesh) -> float:
        sizes = {
            ends: size * sum(piece.block.num_elements for piece in parts)
            for ends, parts in remote_messages(pieces, src_mesh, dst_mesh).items()
        }
        copies: dict[tuple[str, int], float] = {}
        for piece in pieces:
            seconds = self.overhead_s + 2 * size * piece.block.num_elements / self.copy_bytes_per_s
            for end in (("out", piece.source), ("in", piece.target)):
                copies[end] = copies.get(end, 0.0) + seconds
        busiest = [
            max((spent for end, spent in copies.items() if end[0] == side), default=0.0) for side in ("out", "in")
        ]
        return self.exchange_s(sizes) + sum(busiest)

    def exchange_s(self, sizes: Mapping[tuple[int, int], int]) -> float:
        """Seconds of simultaneous messages with these bytes by (sender, receiver), without copies."""
        links: dict[tuple[str, int, int], float] = {}
        for (sender, receiver), size in sizes.items():
            level = link_level(sender, receiver, self._counts)
            num_bytes = np.array([size], dtype=np.float64)
            seconds = max(self._links[level].alpha_s + float(self._links[level].transfer_s(num_bytes)[0]), 0.0)
            for side, device in (("out", sender), ("in", receiver)):
                link = (side, level, unit(device, level, self._counts))
                links[link] = links.get(link, 0.0) + seconds
        return max(links.values(), default=0.0)

    def even_exchange_s(
        self, senders: NDArray[np.int64], receivers: NDArray[np.int64], size: int, latencies_overlap: bool = False
    ) -> float:
        """``exchange_s`` of messages of ``size`` bytes each.

        ``at_once``: messages on one link share only its bandwidth and their latencies overlap, as if p2p was measured
        with all devices sending.
        """
        slowest = 0.0
        for link, busiest in self._shared_links(senders, receivers):
            transfer_s = float(link.transfer_s(np.array([size], dtype=np.float64))[0])
            in_turn_s = busiest * max(link.alpha_s + transfer_s, 0.0)
            slowest = max(slowest, max(link.alpha_s + busiest * transfer_s, 0.0) if latencies_overlap else in_turn_s)
        return slowest

    def even_exchange_lower_bound(
        self, senders: NDArray[np.int64], receivers: NDArray[np.int64]
    ) -> tuple[float, float]:
        """Lower bound of ``even_exchange_s``: (seconds, seconds per byte of one message)."""
        lines = [
            (busiest * max(link.alpha_s, 0.0), busiest * _least_beta(link))
            for link, busiest in self._shared_links(senders, receivers)
        ]
        return max(lines, key=lambda line: line[1], default=(0.0, 0.0))

    def _shared_links(
        self, senders: NDArray[np.int64], receivers: NDArray[np.int64]
    ) -> Iterator[tuple[AlphaBeta, int]]:
        """Links of each level that the messages cross, with the number of messages on the busiest one."""
        apart = np.zeros(len(senders), dtype=bool)
        for level, link in enumerate(self._links):
            units = [units_of(ends, level, self._counts) for ends in (senders, receivers)]
            crossing = (units[0] != units[1]) & ~apart
            if crossing.any():
                apart |= crossing
                yield link, max(int(np.unique(end[crossing], return_counts=True)[1].max()) for end in units)

    def transfer_lower_bound_s(self, src: LayoutCounts, dst: LayoutCounts) -> Floats:
        """Lower bound of ``deliver`` for each pair of a layout of ``src`` and one of ``dst``.

        It counts the messages that one destination device receives and, if the meshes share no unit of a level, those
        that the units send and receive.
        """
        blocks = np.maximum(1, src.splits[:, None] // dst.splits[None]).prod(axis=-1)
        parts = -(-src.parts[:, None] // dst.parts[None])
        if src.devices & dst.devices:  # the device that receives most may be a source itself
            parts = src.parts[:, None] // dst.parts[None]
        num_bytes = (parts * dst.local_bytes).astype(np.float64)
        copied_s: Floats = blocks * parts * self.overhead_s + 2 * num_bytes / self.copy_bytes_per_s
        if dst.devices <= src.devices:
            return copied_s + self._fastest_link_s(np.maximum(0.0, num_bytes - src.local_bytes[:, None]))
        level = self._separating_level(src, dst)
        if level is None:
            return copied_s + self._fastest_link_s(num_bytes)
        readers = len(dst.devices) // dst.parts  # of each part
        total = src.parts[:, None] * readers * dst.local_bytes
        units = max(1, min(len({unit(each, level, self._counts) for each in end.devices}) for end in (src, dst)))
        link = self._links[level]
        shared_s = (blocks * src.parts[:, None] * readers * link.alpha_s + total * _least_beta(link)) / units
        return np.asarray(copied_s + np.maximum(shared_s, self._fastest_link_s(num_bytes)))

    def _separating_level(self, src: LayoutCounts, dst: LayoutCounts) -> int | None:
        """The one level whose links carry all messages; None if there are several or the meshes overlap."""
        levels = {link_level(one, two, self._counts) for one in src.devices for two in dst.devices if one != two}
        return next(iter(levels)) if len(levels) == 1 and not src.devices & dst.devices else None

    def _fastest_link_s(self, num_bytes: Floats) -> Floats:
        """Seconds over the fastest link, without latency."""
        betas = [_least_beta(link) for link, count in zip(self._links, self._counts, strict=True) if count > 1]
        return np.asarray(num_bytes * min(betas, default=0.0))


@dataclass(frozen=True)
class LayoutCounts:
    """Layouts of one tensor on one mesh.

    Args:
        splits: number of shards of each dim, (layouts, dims).
        parts: number of partial sums per layout.
        local_bytes: bytes of one device's shard.
    """

    devices: frozenset[int]
    splits: NDArray[np.int64]
    parts: NDArray[np.int64]
    local_bytes: NDArray[np.int64]

    @staticmethod
    def of(shape: tuple[int, ...], size: int, layouts: Sequence[NdSbp], mesh: PlacedMesh) -> LayoutCounts:
        splits = np.array([shard_counts(shape, layout, mesh) for layout in layouts], dtype=np.int64)
        splits = splits.reshape(len(layouts), len(shape))
        axes = [axis.size for axis in mesh.axes]
        partial = [prod(count for count, sbp in zip(axes, layout, strict=True) if sbp.is_partial) for layout in layouts]
        local = size * prod(shape) // splits.prod(axis=1)
        return LayoutCounts(frozenset(mesh.devices), splits, np.array(partial, dtype=np.int64), local)


def _link(network: NetworkModel, level: int, counts: tuple[int, ...]) -> AlphaBeta:
    """One message alone over a link of a level; the network model measures all devices of a unit at once."""
    shape = tuple(min(count, 2) if at == level else 1 for at, count in enumerate(counts))
    fit = network.alpha_beta("p2p", shape)
    taught = network.correction.network if network.correction is not None else 1.0
    part = taught / prod(counts[level + 1 :])
    knots = tuple((size, beta * part) for size, beta in fit.knots)
    return AlphaBeta(fit.alpha_s * taught, fit.beta_s_per_byte * part, fit.measured, knots)


def _least_beta(link: AlphaBeta) -> float:
    return max(0.0, min([link.beta_s_per_byte, *(beta for _, beta in link.knots)]))
