"""Which parameters are boxed together for their use, from where in the program on, and until when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autosbp.errors import InputError
from autosbp.graph.ir import LogicalGraph, Ref
from autosbp.plan import Strategy
from autosbp.sbp.batching import batched
from autosbp.sbp.boxing import Step, message_bytes
from autosbp.sbp.program import PARAMETER, Box, Item
from autosbp.sbp.recompute import FIELD, ReadKey
from autosbp.sbp.rules import sharding_of

NEVER = -1
UNSAVED: Mapping[str, int] = {
    "aten.embedding.default": 0,
    "aten.linear.default": 2,
    "aten.addmm.default": 0,
    "aten.conv2d.default": 2,
    "aten.layer_norm.default": 2,
}
"""The position at which an op does not need its parameter again for backward; any other parameter is taken as needed."""


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
        recomputed: ``again`` is the box whose recomputation needs them first; copies then stay until their gradients come.
    """

    boxes: tuple[Box, ...]
    flat: bool
    first: int
    again: int
    ready: int
    kept: bool
    recomputed: bool = False

    @property
    def step(self) -> Step:
        """The all-gather of a flat one; axes and kinds are the same for all boxes."""
        return self.boxes[0].steps[0]


def find_gathers(
    graph: LogicalGraph,
    strategy: Strategy,
    items: Sequence[Item],
    readers: Mapping[ReadKey, list[int]],
    passing: frozenset[int],
    shared: frozenset[str],
    region: Sequence[int],
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
    again = [
        _recomputed(graph, items, readers, members, region) if each_use and max(region) >= 0 else NEVER
        for members, _ in groups
    ]
    # What forward ends with, backward begins with: it is kept.
    stays = [
        not each_use
        or (at == len(groups) - 1 and need == max(needed) and all(region[box] == -1 for box, _ in groups[at][0]))
        for at, need in enumerate(needed)
    ]
    return tuple(
        Gather(
            tuple(box for _, box in members),
            flat,
            members[0][0],
            box if box != NEVER else need if each_use else NEVER,
            members[0][0],
            stay,
            box != NEVER,
        )
        for (members, flat), need, stay, box in zip(groups, needed, stays, again, strict=True)
    )


def _recomputed(
    graph: LogicalGraph,
    items: Sequence[Item],
    readers: Mapping[ReadKey, list[int]],
    members: Sequence[tuple[int, Box]],
    region: Sequence[int],
) -> int:
    """The first of these boxes that backward runs again, in the last of their segments; ``NEVER`` where none is in one.
    An op behind that segment needs what it reads earlier: then all are there."""
    for at, box in members:
        using = {region[each] for each in (*readers.get(box.key, ()), *_needing(graph, items, readers, box))}
        if using - {region[at]}:
            limit = "with gather 'use', no op in and another outside of a recomputed run read the same parameter"
            raise InputError(FIELD, box.ref.name, limit)
    inside = [(-region[at], at) for at, _ in members if region[at] >= 0]
    later = max((_needed(graph, items, readers, box) for at, box in members if region[at] < 0), default=NEVER)
    if not inside:
        return NEVER
    at = min(inside)[1]
    return NEVER if later > at else at


def box_bytes(graph: LogicalGraph, strategy: Strategy, box: Box) -> list[int]:
    """The message n of every step of a box."""
    return [message_bytes(step, graph.meta(box.ref).num_bytes, strategy.mesh) for step in box.steps]


def _needed(graph: LogicalGraph, items: Sequence[Item], readers: Mapping[ReadKey, list[int]], box: Box) -> int:
    """The last op that needs the boxed parameter, or a view of it, for its backward; ``NEVER`` where none does."""
    return max(_needing(graph, items, readers, box), default=NEVER)


def _needing(graph: LogicalGraph, items: Sequence[Item], readers: Mapping[ReadKey, list[int]], box: Box) -> list[int]:
    """Ops that need it."""
    found = []
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
                found.append(at)
    return found
