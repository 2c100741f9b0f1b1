"""Cost of a synchronization strategy's kernels (``executor.synchronizers``), as events of the simulated step.

Kernels of a rank run one after another on its communication thread: their events form one queue that overlaps the
backward pass. Concurrent pushes and pulls take as long as the busiest link needs; all messages to a server share its
node's link, which makes it a hot spot. Copies, sums, compressors and the servers' optimizer steps are memory-bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import groupby
from math import prod

import numpy as np

from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.network import level_of
from autosbp.costmodel.offload import optimizer_s
from autosbp.costmodel.p2p_cost import LinkModel
from autosbp.costmodel.step_event import GRADIENT_SYNC, PARAMETER_GATHER, Event
from autosbp.graph.ir import LogicalGraph, Ref
from autosbp.plan.plan import Strategy
from autosbp.plan.synchronizers import BF16, FP16, POWER_SGD, TOP_K
from autosbp.program.gradient_buckets import Bucket
from autosbp.program.gradient_messages import PULL, PUSH, Message, MessageCall

QUEUE = "synchronizers"
COMPRESSOR_ACCESSES = {FP16: 16, BF16: 16, POWER_SGD: 80, TOP_K: 60}
"""Time of each compressor with error feedback, as the number of reads and writes of the message at copy bandwidth.

Measured with 2^20 float32 elements and rank 2 on one CPU core. Most compressors are compute-bound there, so these numbers
exceed the actual numbers of accesses.
"""
SPARSE_ACCESSES = 3
"""Number of reads and writes of a dense gradient to find its non-zero rows and to clear them."""


class SynchronizerCost:
    """Events of gradient messages that are not a single all-reduce.

    Args:
        graph: the graph bound at the microbatch size, or a chunk of it.
        strategy: the strategy with its synchronization.
        boxing: boxing model on the strategy's mesh.
        compute: compute model of the device.
    """

    def __init__(self, graph: LogicalGraph, strategy: Strategy, boxing: BoxingModel, compute: ComputeModel) -> None:
        self.graph, self.strategy, self.compute, self.network = graph, strategy, compute, boxing.network
        self.mesh = strategy.mesh

    @cached_property
    def links(self) -> LinkModel:
        return LinkModel(self.network, self.compute.copy_bytes_per_s)

    def reduction(self, bucket: Bucket) -> Iterator[Event]:
        """Events that copy, encode and reduce the gradients of a bucket."""
        message = _message(bucket)
        yield Event(f"gradients of {bucket.names[0]}", "compute", "sync", self._copies_s(2 * _bytes(message)))
        yield from self._queued(bucket, "sync", self._encoding_s(message), list(message.reduction()))

    def update(self, bucket: Bucket) -> Iterator[Event]:
        """Events that apply the gradients at the servers and send the new values."""
        message = _message(bucket)
        if message.is_served:
            yield from self._queued(bucket, "update", self._apply_s(message), list(message.update()))

    def install(self, bucket: Bucket) -> Iterator[Event]:
        """Events that copy the new values to the parameters."""
        message = _message(bucket)
        if message.is_served:
            size = 2 * message.num_elements * message.value_width
            yield Event(f"values of {bucket.names[0]}", "compute", "update", self._copies_s(size))

    def _queued(self, bucket: Bucket, phase: str, before_s: float, calls: Sequence[MessageCall]) -> Iterator[Event]:
        """Events of one call on the communication thread; the last one has the key ``sync_key``."""
        purpose = GRADIENT_SYNC if phase == "sync" else PARAMETER_GATHER
        events = [(Event(f"{phase} {bucket.names[0]}", "compute", phase, before_s, level=-1, purpose=purpose))]
        for _, turn in groupby(calls, lambda call: (call.kind, call.axes)):
            events += self._turn(list(turn), phase, purpose, bucket)
        for at, event in enumerate(events):
            last = at == len(events) - 1
            key = sync_key(bucket, phase) if last else (*sync_key(bucket, phase), at)
            yield Event(
                event.name, event.category, phase, event.duration_s, event.details, event.level, key,
                purpose=purpose, queue=QUEUE,
            )  # fmt: skip

    def _turn(self, calls: Sequence[MessageCall], phase: str, purpose: str, bucket: Bucket) -> list[Event]:
        """Events of one phase: consecutive collectives, or concurrent messages and the sum at their receivers."""
        messages = calls[0].kind in (PUSH, PULL)
        seconds = [0.0] * len(calls)
        if messages:
            seconds[0] = self._exchange_s(calls)
        else:
            seconds = [self._collective_s(call) for call in calls]
        events = [self._event(call, time_s, bucket) for call, time_s in zip(calls, seconds, strict=True)]
        if calls[0].kind == PUSH:
            ranks = self.mesh.group_size(calls[0].axes)
            busiest = max(self._served_bytes(calls).values(), default=0)
            sums_s = self._copies_s(3 * (ranks - 1) * busiest)
            events.append(Event(f"sum {bucket.names[0]}", "compute", phase, sums_s, level=-1, purpose=purpose))
        return events

    def _event(self, call: MessageCall, seconds: float, bucket: Bucket) -> Event:
        details = {
            "kind": call.kind,
            "num_bytes": call.num_bytes,
            "axes": list(call.axes),
            "axis_names": [self.mesh.axes[axis].name for axis in call.axes],
            "cause": bucket.names[0],
            "layouts": "",
        }
        level = level_of(self.mesh.group_shape(call.axes))
        return Event(f"{call.kind} {bucket.names[0]}", "comm", "", seconds, details, level)

    def _collective_s(self, call: MessageCall) -> float:
        shape = self.mesh.group_shape(call.axes)
        size = np.array([call.num_bytes], dtype=np.float64)
        return float(self.network.times_s(call.kind, size, shape, between_ops=False)[0])

    def _exchange_s(self, calls: Sequence[MessageCall]) -> float:
        """Seconds of concurrent messages in all groups of the mesh."""
        sizes: dict[tuple[int, int], int] = {}
        for call in calls:
            for ranks in self.mesh.all_groups(call.axes):
                coordinate = self.mesh.coordinate(ranks[0])
                if any(coordinate[axis] != index for axis, index in call.only):
                    continue
                root = ranks[call.root]
                for rank in ranks:
                    ends = (rank, root) if call.kind == PUSH else (root, rank)
                    if rank != root:
                        sizes[ends] = sizes.get(ends, 0) + call.num_bytes
        return self.links.exchange_s(sizes)

    @staticmethod
    def _served_bytes(calls: Sequence[MessageCall]) -> dict[int, int]:
        """Bytes that one replica sends to each root."""
        found: dict[int, int] = {}
        for call in calls:
            found[call.root] = found.get(call.root, 0) + call.num_bytes
        return found

    def _copies_s(self, num_bytes: float) -> float:
        return self.compute.device.op_overhead_s + num_bytes / self.compute.copy_bytes_per_s

    def _encoding_s(self, message: Message) -> float:
        """Seconds to compress a message, or to find its non-zero rows."""
        size = _bytes(message)
        if message.sync.sparse_rows:
            rows = sum(
                count * prod(shard.shape[1:])
                for shard, count in zip(message.shards, message.row_capacities(message.shards), strict=True)
            )
            return self._copies_s(SPARSE_ACCESSES * size + 2 * message.num_ranks * rows * message.width)
        if message.sync.compressor is None:
            return 0.0
        return self._copies_s(COMPRESSOR_ACCESSES[message.sync.compressor.name] * size)

    def _apply_s(self, message: Message) -> float:
        """Seconds of the optimizer step at the server with the most elements."""
        elements = max(sum(shard.num_elements for shard in message.at(place)) for place in message.destinations)
        meta = self.graph.meta(Ref(message.shards[0].name))
        size = np.array([elements * message.value_width], dtype=np.float64)
        step = optimizer_s(
            self.compute, self.network.cluster, self.strategy.optimizer, size, meta, offload=self.strategy.offload
        )
        return float(step[0])


def sync_key(bucket: Bucket, phase: str) -> tuple[object, ...]:
    """Key of the event that ends a bucket's reduction (``sync``) or update."""
    return (phase, *bucket.names) if bucket.message is None else (phase, bucket.message.shards)


def is_stale(bucket: Bucket) -> bool:
    """Whether a bucket's reduction and update overlap the next steps."""
    return bucket.message is not None and bucket.message.sync.staleness > 0


def _message(bucket: Bucket) -> Message:
    assert bucket.message is not None
    return bucket.message


def _bytes(message: Message) -> int:
    return message.num_elements * message.width
