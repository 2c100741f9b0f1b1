"""Gradient buckets: which gradients are reduced together, and when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autosbp.graph.ir import LogicalGraph, Ref
from autosbp.plan.plan import BUCKET_BYTES, Strategy
from autosbp.program.activation_checkpointing import ReadKey, Segment
from autosbp.program.gradient_messages import Message, Shard, make_message, message_kind, shards_of
from autosbp.program.parameter_gathers import Gather
from autosbp.program.program import Boxing, Item
from autosbp.program.sync_checks import gradient_reduction_axes
from autosbp.sbp.boxing import split_factor
from autosbp.utils.batching import batch_by_kind

AT_END = -1


@dataclass(frozen=True, slots=True)
class Bucket:
    """Gradients that are reduced together over ``axes``, after the backward of item ``ready`` (or ``AT_END``).

    One all-reduce of whole gradients completes them, unless ``message`` says how a synchronization strategy does.
    """

    names: tuple[str, ...]
    axes: tuple[int, ...]
    ready: int
    message: Message | None = None

    @property
    def is_direct(self) -> bool:
        """Whether it is one all-reduce."""
        return self.message is None or self.message.is_plain


def find_buckets(
    graph: LogicalGraph,
    strategy: Strategy,
    items: Sequence[Item],
    readers: Mapping[ReadKey, list[int]],
    gathers: Sequence[Gather],
    shared: frozenset[str],
    segments: Sequence[Segment],
) -> tuple[Bucket, ...]:
    """Buckets per set of axes and dtype, closed when ``bucket_bytes`` is reached; all in order of completion.

    Shards of parameters that a synchronization strategy configures are in one bucket for each kind and group label.

    Args:
        readers: items whose backward contributes to each value's gradient.
        shared: parameters that other programs read too; they are in no bucket.
    """
    first = {at: segment.first for segment in segments for at in range(segment.first, segment.last + 1)}
    own = {name for segment in segments for name in segment.own}
    boxed: set[ReadKey | None] = {box.key for gather in gathers for box in gather.boxes}
    ready: dict[str, int] = {}
    for leaf in graph.parameters:
        uses = readers.get(Ref(leaf.name), [])
        if uses:
            begun = min((at for at in uses if _box_key(items[at]) not in boxed), default=len(items))
            # A segment returns gradients that other ops contribute to as well only when all of it is done.
            ready[leaf.name] = begun if leaf.name in own else first.get(begun, begun)
    for gather in gathers:
        for box in gather.boxes:
            name = box.ref.name
            ready[name] = AT_END if gather.flat else min(ready[name], gather.ready)
    trained = [leaf for leaf in graph.trained if leaf.name not in shared]
    waiting = [leaf for leaf in trained if leaf.name in ready and _axes(strategy, leaf.name)]
    waiting.sort(key=lambda leaf: -ready[leaf.name])
    configured = {} if strategy.sync is None else strategy.sync.parameters
    groups = batch_by_kind(
        [leaf for leaf in waiting if leaf.name not in configured],
        lambda leaf: (_axes(strategy, leaf.name), leaf.meta.dtype, ready[leaf.name] == AT_END),
        lambda leaf: local_gradient_bytes(graph, strategy, leaf.name),
        strategy.bucket_bytes,
    )
    buckets = [
        Bucket(tuple(leaf.name for leaf in members), _axes(strategy, members[0].name), ready[members[-1].name])
        for _, members in groups
    ]
    buckets += _message_buckets(graph, strategy, [leaf.name for leaf in waiting if leaf.name in configured], ready)
    return tuple(sorted(buckets, key=lambda bucket: -bucket.ready))


def _message_buckets(
    graph: LogicalGraph, strategy: Strategy, names: Sequence[str], ready: Mapping[str, int]
) -> list[Bucket]:
    """Buckets of a synchronization strategy; ``names`` are in the order in which gradients are complete."""
    if strategy.sync is None:
        return []
    kinds: dict[object, list[Shard]] = {}
    for name in names:
        sync, meta = strategy.sync.parameters[name], graph.meta(Ref(name))
        kind = _axes(strategy, name), meta.dtype, meta.gradient_width, ready[name] == AT_END, message_kind(sync)
        for shard, group in zip(shards_of(graph, strategy, name, sync), sync.groups, strict=True):
            kinds.setdefault((*kind, group), []).append(shard)
    found = []
    for shards in kinds.values():
        axes = _axes(strategy, shards[0].name)
        members = tuple(dict.fromkeys(shard.name for shard in shards))
        found.append(
            Bucket(members, axes, min(ready[name] for name in members), make_message(graph, strategy, shards, axes))
        )
    return found


def _box_key(item: Item) -> ReadKey | None:
    return item.key if isinstance(item, Boxing) else None


def _axes(strategy: Strategy, name: str) -> tuple[int, ...]:
    return gradient_reduction_axes(strategy.parameters[name])


def bucket_message_bytes(graph: LogicalGraph, bucket_bytes: int = BUCKET_BYTES) -> int:
    """Message size of a gradient all-reduce: a full bucket, or all parameters if they are smaller."""
    return min(bucket_bytes, sum(leaf.meta.gradient_bytes for leaf in graph.parameters))


def local_gradient_bytes(graph: LogicalGraph, strategy: Strategy, name: str) -> int:
    """Bytes of the gradient of one device's stored part of a parameter."""
    return graph.meta(Ref(name)).gradient_bytes // split_factor(strategy.parameters[name], strategy.mesh)
