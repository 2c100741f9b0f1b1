"""What a step does to parameters around the ops of its microbatches: they are boxed from stored layouts to those of their
use, and gradients of B parameters are reduced; both in few, large messages.

The cost model charges exactly this flow and ``executor.gathering`` and ``executor.reduction`` run exactly this flow. All
of it follows from the program's order, because autograd runs backward in the reverse of it:

- Parameters that one all-gather each takes to the layout of their use travel together, up to ``bucket_bytes``. While one
  such message is waited for, the next is already on its way, forward and backward.
- Gradients that are partial over the same axes are reduced together, up to ``bucket_bytes``, last used first, as soon as
  the last of them is complete in the backward of the last microbatch (Li et al. 2020, section 3.2.3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from autosbp.graph.ir import GRADIENT_STOPS, LogicalGraph, Ref
from autosbp.plan import Strategy
from autosbp.sbp.boxing import Step, message_bytes, split_factor
from autosbp.sbp.placement import B, NdSbp
from autosbp.sbp.program import PARAMETER, Box, Item, program_items
from autosbp.sbp.rules import sharding_of

ReadKey = Ref | tuple[Ref, str, NdSbp]
NEVER, AT_END = -1, -1
UNSAVED: Mapping[str, int] = {
    "aten.embedding.default": 0,
    "aten.linear.default": 2,
    "aten.addmm.default": 0,
    "aten.conv2d.default": 2,
    "aten.layer_norm.default": 2,
}
"""The position at which an op does not need its parameter again for backward; any other parameter is taken as needed."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Gather:
    """Parameters that are boxed together for their use. Positions are those of ``ParameterFlow.items``.

    Args:
        boxes: in the program's order.
        flat: one all-gather brings all, one reduce-scatter takes their gradients back. Else there is one box, by its path.
        first: before this item they must be there.
        again: the first op whose backward needs them, where they are gathered once more; ``NEVER`` where none does, and
            once a step.
        ready: after the backward of this box all their gradients are complete.
        kept: forward's copy stays for backward, nothing is gathered again.
    """

    boxes: tuple[Box, ...]
    flat: bool
    first: int
    again: int
    ready: int
    kept: bool

    @property
    def step(self) -> Step:
        """The all-gather of a flat one; axes and kinds are the same for all boxes."""
        return self.boxes[0].steps[0]


@dataclass(frozen=True, slots=True)
class Bucket:
    """Gradients that one all-reduce over ``axes`` completes, after the backward of item ``ready`` (or ``AT_END``)."""

    names: tuple[str, ...]
    axes: tuple[int, ...]
    ready: int


@dataclass(frozen=True)
class ParameterFlow:
    """``gathers`` are in order of first use, ``buckets`` in order of issue; ``items`` are the program's.

    Boxes of parameters that are no part of a gather are run by the program itself, in every microbatch. ``passing`` are
    the items whose backward runs.
    """

    items: tuple[Item, ...]
    gathers: tuple[Gather, ...]
    buckets: tuple[Bucket, ...]
    passing: frozenset[int]

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
        """Before which item which gathers are issued: the one that is due there, and the next."""
        due = [(gather.first, at) for at, gather in enumerate(self.gathers)]
        return self._sends(due, {at for at, gather in enumerate(self.gathers) if gather.flat})

    @cached_property
    def backward_sends(self) -> Mapping[int, tuple[int, ...]]:
        """Before the backward of which op which gathers are issued again."""
        due = [(-gather.again, at) for at, gather in enumerate(self.gathers) if gather.again != NEVER]
        sends = self._sends(sorted(due), {at for at, gather in enumerate(self.gathers) if gather.flat})
        fresh = {-item: tuple(at for at in sent if not self.gathers[at].kept) for item, sent in sends.items()}
        return {item: sent for item, sent in fresh.items() if sent}

    @staticmethod
    def _sends(due: Sequence[tuple[int, int]], early: set[int]) -> dict[int, tuple[int, ...]]:
        """``due`` are (item, gather) in order; those in ``early`` are issued where the one before them is due, so that
        they are under way while the ops between run. Others would hold these up."""
        sends: dict[int, tuple[int, ...]] = {}
        before: int | None = None
        for item, at in due:
            place = before if before is not None and at in early else item
            sends[place] = (*sends.get(place, ()), at)
            before = item
        return sends


def parameter_flow(graph: LogicalGraph, strategy: Strategy, shared: frozenset[str] = frozenset()) -> ParameterFlow:
    """The flow of one strategy; ``graph`` is bound at its microbatch. Raises ``InputError`` as ``program_items`` does.

    Parameters in ``shared`` are read by other programs too: they travel alone, and are in no bucket.
    """
    items = tuple(program_items(graph, strategy))
    passing = _passing(graph, items)
    readers = _readers(items, passing)
    gathers = _gathers(graph, strategy, items, readers, passing, shared)
    return ParameterFlow(items, gathers, _buckets(graph, strategy, items, readers, gathers, shared), passing)


def synchronised_axes(layout: NdSbp) -> tuple[int, ...]:
    """The axes over which a parameter's gradient is partial."""
    return tuple(axis for axis, sbp in enumerate(layout) if sbp == B)


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


def _gathers(
    graph: LogicalGraph,
    strategy: Strategy,
    items: Sequence[Item],
    readers: Mapping[ReadKey, list[int]],
    passing: frozenset[int],
    shared: frozenset[str],
) -> tuple[Gather, ...]:
    """Once a step, every box of a parameter is run outside of the program; in each use, those that communicate."""
    each_use = strategy.gather == "use"
    boxes = [
        (at, item)
        for at, item in enumerate(items)
        if isinstance(item, Box) and item.group == PARAMETER and at in passing and (item.communicates or not each_use)
    ]
    num_boxes: dict[Ref, int] = {}
    for _, box in boxes:
        num_boxes[box.ref] = num_boxes.get(box.ref, 0) + 1

    def kind(entry: tuple[int, Box]) -> object:
        at, box = entry
        step = box.steps[0]
        if (
            num_boxes[box.ref] > 1
            or box.ref.name in shared
            or len(box.steps) > 1
            or (step.forward, step.backward) != ("all_gather", "reduce_scatter")
        ):
            return at
        return step.axes, graph.meta(box.ref).dtype

    def size(entry: tuple[int, Box]) -> int:
        return box_bytes(graph, strategy, entry[1])[0]

    groups = [
        (members, not isinstance(label, int)) for label, members in batched(boxes, kind, size, strategy.bucket_bytes)
    ]
    needed = [max(_needed(graph, items, readers, box) for _, box in members) for members, _ in groups]
    # What forward ends with, backward begins with: it is kept.
    stays = [not each_use or (at == len(groups) - 1 and need == max(needed)) for at, need in enumerate(needed)]
    return tuple(
        Gather(
            tuple(box for _, box in members),
            flat,
            members[0][0],
            need if each_use else NEVER,
            members[0][0],
            stay,
        )
        for (members, flat), need, stay in zip(groups, needed, stays, strict=True)
    )


def box_bytes(graph: LogicalGraph, strategy: Strategy, box: Box) -> list[int]:
    """The message n of every step of a box."""
    return [message_bytes(step, graph.meta(box.ref).num_bytes, strategy.mesh) for step in box.steps]


def local_bytes(graph: LogicalGraph, strategy: Strategy, name: str) -> int:
    """One device's part of a parameter, as stored."""
    return graph.meta(Ref(name)).num_bytes // split_factor(strategy.parameters[name], strategy.mesh)


def _needed(graph: LogicalGraph, items: Sequence[Item], readers: Mapping[ReadKey, list[int]], box: Box) -> int:
    """The last op that needs the boxed parameter, or a view of it, for its backward; ``NEVER`` where none does."""
    last = NEVER
    open_keys: list[ReadKey] = [box.key]
    while open_keys:
        key = open_keys.pop()
        for at in readers.get(key, ()):
            item = items[at]
            if isinstance(item, Box):
                open_keys.append(item.key)
            elif sharding_of(graph, item.node).free:
                open_keys.extend(Ref(item.node.name, index) for index in range(len(item.node.outputs)))
            elif any(read == key and UNSAVED.get(item.node.op) != place for place, read in enumerate(item.reads)):
                last = max(last, at)
    return last


def _buckets(
    graph: LogicalGraph,
    strategy: Strategy,
    items: Sequence[Item],
    readers: Mapping[ReadKey, list[int]],
    gathers: Sequence[Gather],
    shared: frozenset[str],
) -> tuple[Bucket, ...]:
    """One list per set of axes and dtype, cut where ``bucket_bytes`` is reached; all in order of completion."""
    boxed: set[ReadKey | None] = {box.key for gather in gathers for box in gather.boxes}
    ready: dict[str, int] = {}
    for leaf in graph.parameters:
        uses = readers.get(Ref(leaf.name), [])
        if uses:
            ready[leaf.name] = min((at for at in uses if _box_key(items[at]) not in boxed), default=len(items))
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


def batched(
    things: Iterable[T], kind: Callable[[T], object], num_bytes: Callable[[T], int], limit: int
) -> list[tuple[object, list[T]]]:
    """Things of one kind together, in order, in batches of up to ``limit`` bytes; a larger one is alone, between them.
    Batches are in the order of their first."""
    batches: list[tuple[object, list[T]]] = []
    open_batches: dict[object, tuple[list[T], int]] = {}
    for thing in things:
        label, size = kind(thing), num_bytes(thing)
        if size > limit:
            batches.append((label, [thing]))
            continue
        members, total = open_batches.get(label, ([], limit))
        if not members or total + size > limit:
            members, total = [], 0
            batches.append((label, members))
        members.append(thing)
        open_batches[label] = members, total + size
    return batches
