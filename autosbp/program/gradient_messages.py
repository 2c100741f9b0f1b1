"""Gradient messages of a synchronization strategy: their shards, and the collectives that synchronize them.

The executor's kernels (``executor.synchronizers``) issue these collectives, and the cost model charges them.

- ``all_reduce`` in two phases: reduce-scatter over the axes of the first phase, all-reduce over those of the second,
  all-gather over those of the first. The message is padded to a multiple of the first phase's group size.
- ``push`` sums the messages of all ranks of a group at one rank, ``pull`` copies a message from that rank to the others;
  both consist of P2P messages. With transfer stations, ranks push in the first phase, stations in the second.
- A sparse message consists of the indices (int32) and values of rows. If a batch may touch more rows than one round
  sends, ranks first agree on the number of rounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from math import prod

from autosbp.graph.ir import DTYPE_BYTES, LogicalGraph, Ref
from autosbp.plan.plan import Strategy
from autosbp.plan.synchronizers import ALL_REDUCE, BF16, FP16, PARAMETER_SERVER, POWER_SGD, TOP_K, ParameterSync
from autosbp.program.sync_checks import axes_order, lookups_per_replica
from autosbp.sbp.layout import local_shape
from autosbp.sbp.mesh import Mesh

INDEX_BYTES, COUNT_BYTES, HALF_BYTES = 4, 8, 2
PUSH, PULL = "push", "pull"


@dataclass(frozen=True, slots=True)
class Shard:
    """Rows ``start`` to ``start + shape[dim]`` along ``dim`` of a device's part of a parameter.

    ``whole`` is true if that is the whole part; ``destination`` is the replica that is its server, or -1 without a
    server; ``sparse_rows`` is that of the parameter's ``ParameterSync``.
    """

    name: str
    dim: int
    start: int
    shape: tuple[int, ...]
    whole: bool
    destination: int = -1
    sparse_rows: int = 0

    @property
    def num_elements(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class MessageCall:
    """One collective of a message.

    Args:
        kind: a collective, ``push`` or ``pull``.
        num_bytes: size of the message, as in ``costmodel.step_collectives.Collective``.
        axes: mesh axes of the group.
        root: position in the group of the rank that receives pushes or sends pulls; -1 for collectives.
        only: (axis, index) pairs; only ranks with these indices participate.
    """

    kind: str
    num_bytes: int
    axes: tuple[int, ...]
    root: int = -1
    only: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Message:
    """Shards with the same settings that share a message.

    Args:
        sync: settings of the shards, except groups, partition, destinations and sparse rows, which each shard has.
        axes: reduction axes.
        order: reduction axes of each phase.
        width: bytes per element of the gradients.
        value_width: bytes per element of the parameters.
        sizes: number of ranks along each axis of ``axes``.
        row_bounds: for sparse gradients, the maximum number of rows of each shard that a replica's batch can touch.
    """

    shards: tuple[Shard, ...]
    sync: ParameterSync
    axes: tuple[int, ...]
    order: tuple[tuple[int, ...], ...]
    width: int
    value_width: int
    sizes: tuple[int, ...]
    row_bounds: tuple[int, ...] = ()

    @property
    def is_plain(self) -> bool:
        """Whether the message is a single all-reduce."""
        sync = self.sync
        plain = sync.synchronizer == ALL_REDUCE and len(self.order) == 1
        return plain and not (sync.compressor or sync.sparse_rows)

    @property
    def is_served(self) -> bool:
        """Whether a server applies the gradients and sends the new values."""
        return self.sync.is_served

    @property
    def num_elements(self) -> int:
        return sum(shard.num_elements for shard in self.shards)

    @property
    def buffer_elements(self) -> int:
        """Number of elements in a replica's buffers: gradients, a compressor's residual, versions of values."""
        if self.sync.sparse_rows or (self.is_plain and len(self.shards) == 1):
            return 0
        copies = 2 + self.sync.staleness if self.is_served else 1
        feedback = self.sync.compressor is not None and self.sync.compressor.error_feedback
        return self.num_elements * (copies + feedback)

    @property
    def num_ranks(self) -> int:
        return prod(self.sizes)

    @property
    def destinations(self) -> tuple[int, ...]:
        """Servers, in ascending order."""
        return tuple(sorted({shard.destination for shard in self.shards}))

    def at(self, destination: int) -> tuple[Shard, ...]:
        """Shards of one server."""
        return tuple(shard for shard in self.shards if shard.destination == destination)

    def part_size(self, part: tuple[int, ...]) -> int:
        return prod(self.sizes[self.axes.index(axis)] for axis in part)

    @property
    def padding_multiple(self) -> int:
        """Divisor of the padded number of elements of an all-reduce with several phases."""
        return prod(self.part_size(part) for part in self.order[:-1])

    def padded(self, elements: int) -> int:
        multiple = self.padding_multiple
        return -(-elements // multiple) * multiple

    def indices_of(self, destination: int) -> dict[int, int]:
        """Index of a replica along each reduction axis."""
        found = {}
        for axis, size in zip(reversed(self.axes), reversed(self.sizes), strict=True):
            destination, found[axis] = divmod(destination, size)
        return found

    def root(self, part: tuple[int, ...], destination: int) -> int:
        """Position of a replica's coordinates in a group over ``part``."""
        indices, place = self.indices_of(destination), 0
        for axis in part:
            place = place * self.sizes[self.axes.index(axis)] + indices[axis]
        return place

    def power_sgd_ranks(self) -> tuple[int, ...]:
        """PowerSGD rank of each shard; 0 for shards whose factors would not be smaller, which are not compressed."""
        assert self.sync.compressor is not None
        ranks = []
        for shard in self.shards:
            rows = shard.shape[0] if shard.shape else 1
            columns = shard.num_elements // rows
            rank = min(self.sync.compressor.rank, rows, columns)
            ranks.append(rank if rank * (rows + columns) < rows * columns else 0)
        return tuple(ranks)

    def power_sgd_elements(self) -> tuple[int, int]:
        """Numbers of elements of PowerSGD's two all-reduces: uncompressed shards and left factors, then right factors."""
        first = second = 0
        for shard, rank in zip(self.shards, self.power_sgd_ranks(), strict=True):
            rows = shard.shape[0] if shard.shape else 1
            first += rank * rows if rank else shard.num_elements
            second += rank * (shard.num_elements // rows)
        return first, second

    def top_k_elements(self) -> int:
        assert self.sync.compressor is not None
        return max(1, round(self.sync.compressor.ratio * self.num_elements))

    def row_capacities(self, shards: Sequence[Shard]) -> tuple[int, ...]:
        """Rows of each shard that a replica sends in one round."""
        return tuple(min(shard.sparse_rows, shard.shape[0]) for shard in shards)

    def union_capacities(self, shards: Sequence[Shard]) -> tuple[int, ...]:
        """Rows of each shard that a server sends in one round: those of all replicas."""
        pairs = zip(shards, self.row_capacities(shards), strict=True)
        return tuple(min(self.num_ranks * rows, shard.shape[0]) for shard, rows in pairs)

    @property
    def counts_rows(self) -> bool:
        """Whether replicas have to agree on a number of rounds, because a batch may touch more rows than one sends."""
        pairs = zip(self.row_capacities(self.shards), self.row_bounds, strict=True)
        return any(rows < bound for rows, bound in pairs)

    def reduction(self) -> Iterator[MessageCall]:
        """Collectives that reduce the gradients, in order."""
        sync, ranks = self.sync, self.num_ranks
        name = sync.compressor.name if sync.compressor else None
        width = HALF_BYTES if name in (FP16, BF16) else self.width
        if sync.sparse_rows:
            yield from self._sparse_reduction()
        elif sync.synchronizer == PARAMETER_SERVER:
            yield from chain.from_iterable(self.pushes(width))
        elif name == POWER_SGD:
            for elements in self.power_sgd_elements():
                if elements:
                    yield from self._all_reduce(elements, width)
        elif name == TOP_K:
            kept = self.top_k_elements()
            yield MessageCall("all_gather", ranks * kept * INDEX_BYTES, self.axes)
            yield MessageCall("all_gather", ranks * kept * width, self.axes)
        else:
            yield from self._all_reduce(self.num_elements, width)

    def update(self) -> Iterator[MessageCall]:
        """Collectives that send the servers' new values to all replicas, in order."""
        if self.is_served:
            yield from chain.from_iterable(self.pulls(self.value_width))

    def _all_reduce(self, elements: int, width: int) -> Iterator[MessageCall]:
        """Collectives of an all-reduce in the phases of ``order``."""
        *outer, last = self.order
        num_bytes = (self.padded(elements) if outer else elements) * width
        gathers = []
        for part in outer:
            yield MessageCall("reduce_scatter", num_bytes, part)
            gathers.append(MessageCall("all_gather", num_bytes, part))
            num_bytes //= self.part_size(part)
        yield MessageCall("all_reduce", num_bytes, last)
        yield from reversed(gathers)

    def pushes(self, width: int) -> list[list[MessageCall]]:
        """Pushes of each phase of ``order``: one to each server, with ``width`` bytes per element."""
        turns = []
        for at, part in enumerate(self.order):
            done = [axis for earlier in self.order[:at] for axis in earlier]
            turn = []
            for destination in self.destinations:
                indices = self.indices_of(destination)
                size = width * sum(shard.num_elements for shard in self.at(destination))
                only = tuple((axis, indices[axis]) for axis in done)
                turn.append(MessageCall(PUSH, size, part, self.root(part, destination), only))
            turns.append(turn)
        return turns

    def pulls(self, width: int) -> list[list[MessageCall]]:
        """Pulls of each phase: ``pushes`` in reverse."""
        return [
            [MessageCall(PULL, call.num_bytes, call.axes, call.root, call.only) for call in turn]
            for turn in reversed(self.pushes(width))
        ]

    def _sparse_reduction(self) -> Iterator[MessageCall]:
        """Collectives of one round: indices and values of rows."""
        if self.counts_rows:
            yield MessageCall("all_reduce", COUNT_BYTES * len(self.shards), self.axes)
        if self.sync.synchronizer == ALL_REDUCE:
            for num_bytes in self._row_bytes(self.shards, self.row_capacities(self.shards)):
                yield MessageCall("all_gather", self.num_ranks * num_bytes, self.axes)
            return
        for kind, capacities in ((PUSH, self.row_capacities), (PULL, self.union_capacities)):
            for destination in self.destinations:
                shards = self.at(destination)
                for num_bytes in self._row_bytes(shards, capacities(shards)):
                    yield MessageCall(kind, num_bytes, self.axes, destination)

    def _row_bytes(self, shards: Sequence[Shard], rows: Sequence[int]) -> tuple[int, int]:
        """Bytes of the indices and of the values."""
        elements = (count * prod(shard.shape[1:]) for shard, count in zip(shards, rows, strict=True))
        return sum(rows) * INDEX_BYTES, sum(elements) * self.width


def shards_of(graph: LogicalGraph, strategy: Strategy, name: str, sync: ParameterSync) -> tuple[Shard, ...]:
    """Shards of a parameter, whose sizes differ by at most one row; larger ones first."""
    shape = local_shape(graph.meta(Ref(name)).sizes, strategy.parameters[name], strategy.mesh)
    destinations = sync.destinations or (-1,) * sync.num_shards
    if sync.partition is None:
        return (Shard(name, 0, 0, shape, True, destinations[0], sync.sparse_rows),)
    dim, count = sync.partition.dim, sync.partition.shards
    rows, more = divmod(shape[dim], count)
    found, start = [], 0
    for at, destination in enumerate(destinations):
        size = rows + (at < more)
        part = (*shape[:dim], size, *shape[dim + 1 :])
        found.append(Shard(name, dim, start, part, False, destination, sync.sparse_rows))
        start += size
    return tuple(found)


def make_message(graph: LogicalGraph, strategy: Strategy, shards: Sequence[Shard], axes: tuple[int, ...]) -> Message:
    """The message of shards with the same settings."""
    assert strategy.sync is not None
    sync, mesh = strategy.sync.parameters[shards[0].name], strategy.mesh
    meta = graph.meta(Ref(shards[0].name))
    sizes = tuple(mesh.axes[axis].size for axis in axes)
    order = axes_order(mesh, axes, sync)
    bounds = (
        tuple(min(lookups_per_replica(graph, strategy, shard.name), shard.shape[0]) for shard in shards)
        if sync.sparse_rows
        else ()
    )
    return Message(tuple(shards), sync, axes, order, meta.gradient_width, DTYPE_BYTES[meta.dtype], sizes, bounds)


def message_kind(sync: ParameterSync) -> object:
    """Key that is equal for the shards of one message."""
    return sync.synchronizer, sync.order, sync.compressor, sync.staleness, sync.sparse_rows > 0


def participates(mesh: Mesh, rank: int, call: MessageCall) -> bool:
    """Whether a rank participates in a collective."""
    coordinate = mesh.coordinate(rank)
    return all(coordinate[axis] == index for axis, index in call.only)
