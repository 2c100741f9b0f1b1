"""Time of the messages that take a tensor from one mesh to another (``sbp.transfer``).

A message takes alpha + n beta. Those that one link carries in one direction wait for each other: the link of a node to
other nodes, of a device to others of its node. The busiest link counts, and on the busiest devices the copies into and
out of messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from autosbp.costmodel.network import AlphaBeta, NetworkModel
from autosbp.sbp.placed_mesh import PlacedMesh, link_level, unit, units_of
from autosbp.sbp.placement import NdSbp, shard_counts
from autosbp.sbp.transfer import Piece, deal, messages

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Delivery:
    """Pieces from one mesh to another, and the seconds that they take."""

    pieces: tuple[Piece, ...]
    seconds: float


class LinkModel:
    """Times of deliveries over one network."""

    def __init__(self, network: NetworkModel, copy_bytes_per_s: float) -> None:
        self.copy_bytes_per_s, self.overhead_s = copy_bytes_per_s, network.cluster.device.op_overhead_s
        self._counts = tuple(level.count for level in network.cluster.levels)
        self._links = tuple(_link(network, level, self._counts) for level in range(len(self._counts)))

    def deliver(
        self, shape: tuple[int, ...], size: int, src: NdSbp, src_mesh: PlacedMesh, dst: NdSbp, dst_mesh: PlacedMesh
    ) -> Delivery:
        """The pieces of a tensor with elements of ``size`` bytes: replicas each give a part of what a rank needs, or take
        turns, whichever is quicker."""
        found = []
        for cut in (False, True):
            pieces = deal(shape, src, src_mesh, dst, dst_mesh, cut=cut)
            found.append(Delivery(pieces, self.seconds(pieces, size, src_mesh, dst_mesh)))
        return min(found, key=lambda delivery: delivery.seconds)

    def seconds(self, pieces: Sequence[Piece], size: int, src_mesh: PlacedMesh, dst_mesh: PlacedMesh) -> float:
        sizes = {
            ends: size * sum(piece.block.num_elements for piece in parts)
            for ends, parts in messages(pieces, src_mesh, dst_mesh).items()
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
        """Messages of so many bytes from a device to another, all at once; without copies."""
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
        self, senders: NDArray[np.int64], receivers: NDArray[np.int64], size: int, at_once: bool = False
    ) -> float:
        """As ``exchange_s``, of messages of ``size`` bytes each from a device to another one. ``at_once``: those that share
        a link share its bandwidth alone, as where p2p was measured with all devices sending; their latencies pass beside
        each other."""
        slowest = 0.0
        for link, busiest in self._shared_links(senders, receivers):
            transfer_s = float(link.transfer_s(np.array([size], dtype=np.float64))[0])
            in_turn_s = busiest * max(link.alpha_s + transfer_s, 0.0)
            slowest = max(slowest, max(link.alpha_s + busiest * transfer_s, 0.0) if at_once else in_turn_s)
        return slowest

    def least_line(self, senders: NDArray[np.int64], receivers: NDArray[np.int64]) -> tuple[float, float]:
        """Seconds, and seconds a byte of one message, that ``even_exchange_s`` takes at the least."""
        lines = [
            (busiest * max(link.alpha_s, 0.0), busiest * _least_beta(link))
            for link, busiest in self._shared_links(senders, receivers)
        ]
        return max(lines, key=lambda line: line[1], default=(0.0, 0.0))

    def _shared_links(
        self, senders: NDArray[np.int64], receivers: NDArray[np.int64]
    ) -> Iterator[tuple[AlphaBeta, int]]:
        """The link of each level that messages from a device to another one go over, and how many the busiest one carries."""
        apart = np.zeros(len(senders), dtype=bool)
        for level, link in enumerate(self._links):
            units = [units_of(ends, level, self._counts) for ends in (senders, receivers)]
            crossing = (units[0] != units[1]) & ~apart
            if crossing.any():
                apart |= crossing
                yield link, max(int(np.unique(end[crossing], return_counts=True)[1].max()) for end in units)

    def least_s(self, src: Counts, dst: Counts) -> Floats:
        """For each layout of ``src`` and each of ``dst``, no more than the delivery takes: the messages that one device
        of the destination gets, and, where the meshes share no unit of a level, those that its units send and get."""
        blocks = np.maximum(1, src.splits[:, None] // dst.splits[None]).prod(axis=-1)
        parts = -(-src.parts[:, None] // dst.parts[None])
        if src.devices & dst.devices:  # the device that gets the most may be a source itself
            parts = src.parts[:, None] // dst.parts[None]
        num_bytes = (parts * dst.local_bytes).astype(np.float64)
        copied_s: Floats = blocks * parts * self.overhead_s + 2 * num_bytes / self.copy_bytes_per_s
        if dst.devices <= src.devices:
            return copied_s + self._quickest_s(np.maximum(0.0, num_bytes - src.local_bytes[:, None]))
        level = self._apart(src, dst)
        if level is None:
            return copied_s + self._quickest_s(num_bytes)
        readers = len(dst.devices) // dst.parts  # of each part
        total = src.parts[:, None] * readers * dst.local_bytes
        units = max(1, min(len({unit(each, level, self._counts) for each in end.devices}) for end in (src, dst)))
        link = self._links[level]
        shared_s = (blocks * src.parts[:, None] * readers * link.alpha_s + total * _least_beta(link)) / units
        return np.asarray(copied_s + np.maximum(shared_s, self._quickest_s(num_bytes)))

    def _apart(self, src: Counts, dst: Counts) -> int | None:
        """The level whose links carry all messages, if there is one."""
        levels = {link_level(one, two, self._counts) for one in src.devices for two in dst.devices if one != two}
        return next(iter(levels)) if len(levels) == 1 and not src.devices & dst.devices else None

    def _quickest_s(self, num_bytes: Floats) -> Floats:
        """Over the best of all links, without latency."""
        betas = [_least_beta(link) for link, count in zip(self._links, self._counts, strict=True) if count > 1]
        return np.asarray(num_bytes * min(betas, default=0.0))


@dataclass(frozen=True)
class Counts:
    """Layouts of one tensor on one mesh: how often each dim is split, of how many partial sums each is one, and the bytes
    of one device's part."""

    devices: frozenset[int]
    splits: NDArray[np.int64]
    parts: NDArray[np.int64]
    local_bytes: NDArray[np.int64]

    @staticmethod
    def of(shape: tuple[int, ...], size: int, layouts: Sequence[NdSbp], mesh: PlacedMesh) -> Counts:
        splits = np.array([shard_counts(shape, layout, mesh) for layout in layouts], dtype=np.int64)
        splits = splits.reshape(len(layouts), len(shape))
        axes = [axis.size for axis in mesh.axes]
        partial = [prod(count for count, sbp in zip(axes, layout, strict=True) if sbp.is_partial) for layout in layouts]
        local = size * prod(shape) // splits.prod(axis=1)
        return Counts(frozenset(mesh.devices), splits, np.array(partial, dtype=np.int64), local)


def _link(network: NetworkModel, level: int, counts: tuple[int, ...]) -> AlphaBeta:
    """One message over a link of a level alone; what the network model knows is of all devices of a unit at once."""
    shape = tuple(min(count, 2) if at == level else 1 for at, count in enumerate(counts))
    fit = network.alpha_beta("p2p", shape)
    taught = network.correction.network if network.correction is not None else 1.0
    part = taught / prod(counts[level + 1 :])
    knots = tuple((size, beta * part) for size, beta in fit.knots)
    return AlphaBeta(fit.alpha_s * taught, fit.beta_s_per_byte * part, fit.measured, knots)


def _least_beta(link: AlphaBeta) -> float:
    return max(0.0, min([link.beta_s_per_byte, *(beta for _, beta in link.knots)]))
