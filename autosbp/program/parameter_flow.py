"""Parameter flow of a step: boxing of parameters from stored to used layouts, and gradient reduction.

Both use few, large messages. The cost model charges exactly this flow; ``executor.parameter_gathers`` and
``executor.gradient_buckets`` run it. It follows from the program's order, since autograd runs backward in reverse:

- Parameters that take one all-gather each to the layout of their use travel together, up to ``bucket_bytes``. Gathered
  once a step, where copies stay to its end anyway, all such messages start with the first one. Gathered for each use,
  the next message is prefetched while one is waited for, forward and backward.
- Gradients that are partial over the same axes are reduced together, up to ``bucket_bytes``, last used first, as soon
  as the last of them is complete in the backward of the last microbatch (Li et al. 2020, section 3.2.3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from autosbp.graph.ir import DETACH_OPS, LogicalGraph, Ref
from autosbp.plan.plan import Strategy
from autosbp.program.activation_checkpointing import (
    ReadKey,
    Segment,
    check_recompute,
    find_segments,
    recomputed_ranges,
    segment_ids,
)
from autosbp.program.gradient_buckets import Bucket, find_buckets
from autosbp.program.parameter_gathers import NEVER, Gather, find_gathers
from autosbp.program.program import Boxing, Item, program_items
from autosbp.program.sync_checks import check_gathered, check_sync

M = TypeVar("M")


@dataclass(frozen=True)
class ParameterFlow:
    """``gathers`` in order of first use, ``once`` a step or for each use; ``buckets`` in order of issue.

    ``items`` are the program's. The program itself runs, in every microbatch, boxes of parameters that belong to no
    gather. ``passing`` are the items whose backward runs, ``segments`` those that are recomputed for it.
    """

    items: tuple[Item, ...]
    gathers: tuple[Gather, ...]
    buckets: tuple[Bucket, ...]
    backward_items: frozenset[int]
    segments: tuple[Segment, ...] = ()
    once: bool = True

    @cached_property
    def place(self) -> Mapping[ReadKey, tuple[int, int]]:
        """Gather, and box within it, that brings the copy with each box's key."""
        return {box.key: (at, i) for at, gather in enumerate(self.gathers) for i, box in enumerate(gather.boxes)}

    @cached_property
    def sources(self) -> Mapping[str, int]:
        """Number of places in backward that add to each parameter's gradient.

        The program's own reads count 1, and each copy boxed by its path counts 1. Gradients that return in a flat
        message come after backward and are not counted.
        """
        passed = (self.items[at] for at in self.backward_items)
        read = {
            key.name
            for item in passed
            if not (isinstance(item, Boxing) and item.key in self.place)
            for key in ((item.ref,) if isinstance(item, Boxing) else item.reads)
            if isinstance(key, Ref)
        }
        counts = dict.fromkeys(read, 1)
        for gather in self.gathers:
            for box in gather.boxes:
                counts[box.ref.name] = counts.get(box.ref.name, 0) + (not gather.flat)
        return counts

    @cached_property
    def served_parameters(self) -> frozenset[str]:
        """Parameters that parameter servers step."""
        messages = (bucket.message for bucket in self.buckets if bucket.message is not None)
        return frozenset(shard.name for message in messages if message.is_served for shard in message.shards)

    @cached_property
    def forward_gathers(self) -> Mapping[int, tuple[int, ...]]:
        """Gathers issued before each item: the one due there, and the next flat one.

        Gathered once a step, all flat ones are issued together at the first such moment.
        """
        due = [(gather.first, at) for at, gather in enumerate(self.gathers)]
        flat = {at for at, gather in enumerate(self.gathers) if gather.flat}
        if not self.once or not due:
            return self._assign_issue_points(due, flat)
        first = due[0][0]
        sends = {first: tuple(at for moment, at in due if at in flat or moment == first)}
        return sends | {moment: (at,) for moment, at in due if at not in flat and moment != first}

    @cached_property
    def ends(self) -> Mapping[int, Segment]:
        """The segment that is recomputed before the backward of each item."""
        return {segment.last: segment for segment in self.segments}

    @property
    def backward_gathers(self) -> Mapping[int, tuple[int, ...]]:
        """Gathers issued again before the backward of each op."""
        return self._regather_points[0]

    @property
    def recompute_gathers(self) -> Mapping[int, tuple[int, ...]]:
        """Gathers issued again before the recomputation of each box."""
        return self._regather_points[1]

    @cached_property
    def _regather_points(self) -> tuple[Mapping[int, tuple[int, ...]], Mapping[int, tuple[int, ...]]]:
        last = {at: segment.last for segment in self.segments for at in range(segment.first, segment.last + 1)}

        def moment(gather: Gather) -> tuple[int, int, int]:
            """Backward's order: before its last item's backward, a segment is recomputed in forward order."""
            if gather.recomputed:
                return -last[gather.again], 0, gather.again
            return -gather.again, 1, gather.again

        due = sorted((moment(gather), at) for at, gather in enumerate(self.gathers) if gather.again != NEVER)
        sends = self._assign_issue_points(due, {at for at, gather in enumerate(self.gathers) if gather.flat})
        found: tuple[dict[int, tuple[int, ...]], dict[int, tuple[int, ...]]] = {}, {}
        for (_, backward, item), sent in sends.items():
            fresh = tuple(at for at in sent if not self.gathers[at].kept)
            if fresh:
                found[not backward][item] = fresh
        return found

    @staticmethod
    def _assign_issue_points(due: Sequence[tuple[M, int]], early: set[int]) -> dict[M, tuple[int, ...]]:
        """Assign gathers to moments of issue.

        ``due`` are (moment, gather) in order. Those in ``early`` are issued at the moment of the gather before, so that
        they overlap with the ops between; others would delay these ops.
        """
        sends: dict[M, tuple[int, ...]] = {}
        before: M | None = None
        for moment, at in due:
            place = before if before is not None and at in early else moment
            sends[place] = (*sends.get(place, ()), at)
            before = moment
        return sends


def parameter_flow(graph: LogicalGraph, strategy: Strategy, shared: frozenset[str] = frozenset()) -> ParameterFlow:
    """The flow of one strategy.

    Args:
        graph: bound at the strategy's microbatch.
        shared: parameters that other programs read too: they travel alone, and are in no bucket.

    Raises:
        InputError: as ``program_items``.
    """
    items = tuple(program_items(graph, strategy))
    if strategy.recompute and strategy.pipeline is None:
        check_recompute(graph, strategy, [graph])
    if strategy.pipeline is None:
        check_sync(graph, strategy)
    passing = _backward_items(graph, items)
    readers = _readers(items, passing)
    ranges = recomputed_ranges(strategy, items)
    region = segment_ids(ranges, len(items))
    gathers = find_gathers(graph, strategy, items, readers, passing, shared, region)
    check_gathered(strategy, (leaf.name for leaf in graph.trained if leaf.name not in shared), gathers)
    boxed = {box.key for gather in gathers for box in gather.boxes}
    segments = find_segments(graph, items, ranges, boxed, readers)
    buckets = find_buckets(graph, strategy, items, readers, gathers, shared, segments)
    return ParameterFlow(items, gathers, buckets, passing, segments, strategy.gather == "step")


def program_flow(graph: LogicalGraph, strategy: Strategy) -> ParameterFlow:
    """Like ``parameter_flow``, for a program that boxes its parameters itself and synchronises nothing."""
    items = tuple(program_items(graph, strategy))
    ranges = recomputed_ranges(strategy, items)
    if not ranges:
        return ParameterFlow(items, (), (), frozenset())
    passing = _backward_items(graph, items)
    segments = find_segments(graph, items, ranges, (), _readers(items, passing))
    return ParameterFlow(items, (), (), passing, segments)


def _backward_items(graph: LogicalGraph, items: Sequence[Item]) -> frozenset[int]:
    """Items that a gradient of the loss passes through.

    Parameters that it never reaches get no gradient, as on one device.
    """
    last = items[-1]
    reached: set[ReadKey] = {ref for ref in graph.results if graph.has_gradient(ref)}
    if not graph.results:
        assert isinstance(last, Boxing)
        reached.add(last.key)
    passing = set()
    for at in range(len(items) - 1, -1, -1):
        item = items[at]
        if isinstance(item, Boxing):
            if item.key in reached and item.differentiable:
                passing.add(at)
                reached.add(item.ref)
        elif item.node.op not in DETACH_OPS and any(
            Ref(item.node.name, index) in reached for index in range(len(item.node.outputs))
        ):
            passing.add(at)
            reached |= {read for ref, read in zip(item.node.refs(), item.reads, strict=True) if graph.has_gradient(ref)}
    return frozenset(passing)


def _readers(items: Sequence[Item], passing: frozenset[int]) -> dict[ReadKey, list[int]]:
    """Items whose backward contributes to each value's gradient."""
    readers: dict[ReadKey, list[int]] = {}
    for at in sorted(passing):
        item = items[at]
        for key in {item.ref} if isinstance(item, Boxing) else set(item.reads):
            readers.setdefault(key, []).append(at)
    return readers
