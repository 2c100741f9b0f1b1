"""Which gradients are reduced together, and from when on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autosbp.graph.ir import LogicalGraph, Ref
from autosbp.plan import BUCKET_BYTES, Strategy
from autosbp.sbp.batching import batched
from autosbp.sbp.boxing import split_factor
from autosbp.sbp.gathers import Gather
from autosbp.sbp.placement import B, NdSbp
from autosbp.sbp.program import Box, Item
from autosbp.sbp.recompute import ReadKey, Segment

AT_END = -1


@dataclass(frozen=True, slots=True)
class Bucket:
    """Gradients that one all-reduce over ``axes`` completes, after the backward of item ``ready`` (or ``AT_END``)."""

    names: tuple[str, ...]
    axes: tuple[int, ...]
    ready: int


def find_buckets(
    graph: LogicalGraph,
    strategy: Strategy,
    items: Sequence[Item],
    readers: Mapping[ReadKey, list[int]],
    gathers: Sequence[Gather],
    shared: frozenset[str],
    segments: Sequence[Segment],
) -> tuple[Bucket, ...]:
    """One list per set of axes and dtype, cut where ``bucket_bytes`` is reached; all in order of completion."""
    first = {at: segment.first for segment in segments for at in range(segment.first, segment.last + 1)}
    own = {name for segment in segments for name in segment.own}
    boxed: set[ReadKey | None] = {box.key for gather in gathers for box in gather.boxes}
    ready: dict[str, int] = {}
    for leaf in graph.parameters:
        uses = readers.get(Ref(leaf.name), [])
        if uses:
            begun = min((at for at in uses if _box_key(items[at]) not in boxed), default=len(items))
            # A segment hands what others bring gradients to, too, over when all of it is done.
            ready[leaf.name] = begun if leaf.name in own else first.get(begun, begun)
    for gather in gathers:
        for box in gather.boxes:
            name = box.ref.name
            ready[name] = AT_END if gather.flat else min(ready[name], gather.ready)
    trained = [leaf for leaf in graph.trained if leaf.name not in shared]
    waiting = [leaf for leaf in trained if leaf.name in ready and _axes(strategy, leaf.name)]
    waiting.sort(key=lambda leaf: -ready[leaf.name])
    groups = batched(
        waiting,
        lambda leaf: (_axes(strategy, leaf.name), leaf.meta.dtype, ready[leaf.name] == AT_END),
        lambda leaf: local_bytes(graph, strategy, leaf.name),
        strategy.bucket_bytes,
    )
    buckets = [
        Bucket(tuple(leaf.name for leaf in members), _axes(strategy, members[0].name), ready[members[-1].name])
        for _, members in groups
    ]
    return tuple(sorted(buckets, key=lambda bucket: -bucket.ready))


def _box_key(item: Item) -> ReadKey | None:
    return item.key if isinstance(item, Box) else None


def _axes(strategy: Strategy, name: str) -> tuple[int, ...]:
    return synchronised_axes(strategy.parameters[name])


def synchronised_axes(layout: NdSbp) -> tuple[int, ...]:
    """The axes over which a parameter's gradient is partial."""
    return tuple(axis for axis, sbp in enumerate(layout) if sbp == B)


def shared_message_bytes(graph: LogicalGraph, bucket_bytes: int = BUCKET_BYTES) -> int:
    """The message that a gradient travels in: a full bucket, or one of all parameters."""
    return min(bucket_bytes, sum(leaf.meta.num_bytes for leaf in graph.parameters))


def local_bytes(graph: LogicalGraph, strategy: Strategy, name: str) -> int:
    """One device's part of a parameter, as stored."""
    return graph.meta(Ref(name)).num_bytes // split_factor(strategy.parameters[name], strategy.mesh)
