"""What a step does to parameters around the ops of its microbatches: they are boxed from stored layouts to those of their
use, and gradients of B parameters are reduced; both in few, large messages.

The cost model charges exactly this flow and ``executor.gathering`` and ``executor.reduction`` run exactly this flow. All
of it follows from the program's order, because autograd runs backward in the reverse of it:

- Parameters that one all-gather each takes to the layout of their use travel together, up to ``bucket_bytes``. Gathered once a
  step, where copies stay to its end anyway, all such messages are on their way from the first one on; gathered for each use,
  the next one while one is waited for, forward and backward.
- Gradients that are partial over the same axes are reduced together, up to ``bucket_bytes``, last used first, as soon as
  the last of them is complete in the backward of the last microbatch (Li et al. 2020, section 3.2.3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from autosbp.graph.ir import GRADIENT_STOPS, LogicalGraph, Ref
from autosbp.plan import Strategy
from autosbp.sbp.buckets import Bucket, find_buckets
from autosbp.sbp.gathers import NEVER, Gather, find_gathers
from autosbp.sbp.program import Box, Item, program_items
from autosbp.sbp.recompute import ReadKey, Segment, check_recompute, find_segments, recomputed_ranges, region_of

M = TypeVar("M")


@dataclass(frozen=True)
class ParameterFlow:
    """``gathers`` are in order of first use, ``once`` a step or for each use; ``buckets`` in order of issue; ``items`` are the
    program's.

    Boxes of parameters that are no part of a gather are run by the program itself, in every microbatch. ``passing`` are
    the items whose backward runs, ``segments`` those that are recomputed for it.
    """

    items: tuple[Item, ...]
    gathers: tuple[Gather, ...]
    buckets: tuple[Bucket, ...]
    passing: frozenset[int]
    segments: tuple[Segment, ...] = ()
    once: bool = True

    @cached_property
    def place(self) -> Mapping[ReadKey, tuple[int, int]]:
        """Which gather, and which of its boxes, brings the copy of a box's key."""
        return {box.key: (at, i) for at, gather in enumerate(self.gathers) for i, box in enumerate(gather.boxes)}

    @cached_property
    def sources(self) -> Mapping[str, int]:
        """From how many places backward brings a parameter's gradient: what the program itself reads, and each copy that
        is boxed by its path. What returns in a flat message comes after backward and is not counted."""
        passed = (self.items[at] for at in self.passing)
        read = {
            key.name
            for item in passed
            if not (isinstance(item, Box) and item.key in self.place)
            for key in ((item.ref,) if isinstance(item, Box) else item.reads)
            if isinstance(key, Ref)
        }
        counts = dict.fromkeys(read, 1)
        for gather in self.gathers:
            for box in gather.boxes:
                counts[box.ref.name] = counts.get(box.ref.name, 0) + (not gather.flat)
        return counts

    @cached_property
    def forward_sends(self) -> Mapping[int, tuple[int, ...]]:
        """Before which item which gathers are issued: the one that is due there, and the next; or all that are flat before the
        first."""
        due = [(gather.first, at) for at, gather in enumerate(self.gathers)]
        flat = {at for at, gather in enumerate(self.gathers) if gather.flat}
        if not self.once or not due:
            return self._sends(due, flat)
        first = due[0][0]
        sends = {first: tuple(at for moment, at in due if at in flat or moment == first)}
        return sends | {moment: (at,) for moment, at in due if at not in flat and moment != first}

    @cached_property
    def ends(self) -> Mapping[int, Segment]:
        """Before the backward of which item which segment is recomputed."""
        return {segment.last: segment for segment in self.segments}

    @property
    def backward_sends(self) -> Mapping[int, tuple[int, ...]]:
        """Before the backward of which op which gathers are issued again."""
        return self._again_sends[0]

    @property
    def recompute_sends(self) -> Mapping[int, tuple[int, ...]]:
        """Before the recomputation of which box which gathers are issued again."""
        return self._again_sends[1]

    @cached_property
    def _again_sends(self) -> tuple[Mapping[int, tuple[int, ...]], Mapping[int, tuple[int, ...]]]:
        last = {at: segment.last for segment in self.segments for at in range(segment.first, segment.last + 1)}

        def moment(gather: Gather) -> tuple[int, int, int]:
            """In the order of backward: a segment is recomputed, in the order of forward, before its last item's."""
            if gather.recomputed:
                return -last[gather.again], 0, gather.again
            return -gather.again, 1, gather.again

        due = sorted((moment(gather), at) for at, gather in enumerate(self.gathers) if gather.again != NEVER)
        sends = self._sends(due, {at for at, gather in enumerate(self.gathers) if gather.flat})
        found: tuple[dict[int, tuple[int, ...]], dict[int, tuple[int, ...]]] = {}, {}
        for (_, backward, item), sent in sends.items():
            fresh = tuple(at for at in sent if not self.gathers[at].kept)
            if fresh:
                found[not backward][item] = fresh
        return found

    @staticmethod
    def _sends(due: Sequence[tuple[M, int]], early: set[int]) -> dict[M, tuple[int, ...]]:
        """``due`` are (moment, gather) in order; those in ``early`` are issued where the one before them is due, so that
        they are under way while the ops between run. Others would hold these up."""
        sends: dict[M, tuple[int, ...]] = {}
        before: M | None = None
        for moment, at in due:
            place = before if before is not None and at in early else moment
            sends[place] = (*sends.get(place, ()), at)
            before = moment
        return sends


def parameter_flow(graph: LogicalGraph, strategy: Strategy, shared: frozenset[str] = frozenset()) -> ParameterFlow:
    """The flow of one strategy; ``graph`` is bound at its microbatch. Raises ``InputError`` as ``program_items`` does.

    Parameters in ``shared`` are read by other programs too: they travel alone, and are in no bucket.
    """
    items = tuple(program_items(graph, strategy))
    if strategy.recompute and strategy.pipeline is None:
        check_recompute(graph, strategy, [graph])
    passing = _passing(graph, items)
    readers = _readers(items, passing)
    ranges = recomputed_ranges(strategy, items)
    region = region_of(ranges, len(items))
    gathers = find_gathers(graph, strategy, items, readers, passing, shared, region)
    boxed = {box.key for gather in gathers for box in gather.boxes}
    segments = find_segments(graph, items, ranges, boxed, readers)
    buckets = find_buckets(graph, strategy, items, readers, gathers, shared, segments)
    return ParameterFlow(items, gathers, buckets, passing, segments, strategy.gather == "step")


def program_flow(graph: LogicalGraph, strategy: Strategy) -> ParameterFlow:
    """As ``parameter_flow``, of a program that boxes its parameters itself and synchronises nothing."""
    items = tuple(program_items(graph, strategy))
    ranges = recomputed_ranges(strategy, items)
    if not ranges:
        return ParameterFlow(items, (), (), frozenset())
    passing = _passing(graph, items)
    segments = find_segments(graph, items, ranges, (), _readers(items, passing))
    return ParameterFlow(items, (), (), passing, segments)


def _passing(graph: LogicalGraph, items: Sequence[Item]) -> frozenset[int]:
    """Items that a gradient of the loss goes through. A parameter that none reaches keeps none, as on one device."""
    last = items[-1]
    reached: set[ReadKey] = {ref for ref in graph.results if graph.has_gradient(ref)}
    if not graph.results:
        assert isinstance(last, Box)
        reached.add(last.key)
    passing = set()
    for at in range(len(items) - 1, -1, -1):
        item = items[at]
        if isinstance(item, Box):
            if item.key in reached and item.differentiable:
                passing.add(at)
                reached.add(item.ref)
        elif item.node.op not in GRADIENT_STOPS and any(
            Ref(item.node.name, index) in reached for index in range(len(item.node.outputs))
        ):
            passing.add(at)
            reached |= {read for ref, read in zip(item.node.refs(), item.reads, strict=True) if graph.has_gradient(ref)}
    return frozenset(passing)


def _readers(items: Sequence[Item], passing: frozenset[int]) -> dict[ReadKey, list[int]]:
    """From where in the program a gradient comes to each value."""
    readers: dict[ReadKey, list[int]] = {}
    for at in sorted(passing):
        item = items[at]
        for key in {item.ref} if isinstance(item, Box) else set(item.reads):
            readers.setdefault(key, []).append(at)
    return readers
