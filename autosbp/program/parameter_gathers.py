"""Parameter gathers: which parameters are boxed together for their use, from when and until when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autosbp.errors import InputError
from autosbp.graph.ir import LogicalGraph, Ref
from autosbp.plan.plan import Strategy
from autosbp.plan.synchronizers import Compressor
from autosbp.program.activation_checkpointing import RECOMPUTE_FIELD, ReadKey
from autosbp.program.program import PARAMETER_GROUP, Boxing, Item
from autosbp.sbp.boxing import BoxingStep, message_bytes
from autosbp.sbp.rules import sharding_of
from autosbp.utils.batching import batch_by_kind

NEVER = -1
NOT_SAVED_FOR_BACKWARD: Mapping[str, int] = {
    "aten.embedding.default": 0,
    "aten.linear.default": 2,
    "aten.addmm.default": 0,
    "aten.conv2d.default": 2,
    "aten.layer_norm.default": 2,
}
"""Argument position at which an op does not save its parameter for backward; other parameters count as saved."""


@dataclass(frozen=True, slots=True)
class Gather:
    """Parameters that are boxed together for their use. Positions are those of ``ParameterFlow.items``.

    Args:
        boxes: in the program's order.
        flat: one all-gather brings all, one reduce-scatter returns their gradients. Else there is one box, run by its
            path.
        first: the copies must be there before this item.
        again: the item before whose backward they are gathered again; ``NEVER`` if gathered once a step or unneeded.
        ready: all their gradients are complete after the backward of this box.
        kept: forward's copy stays for backward; nothing is gathered again.
        recomputed: ``again`` is a box whose recomputation needs them first; copies then stay until their gradients
            come.
        compressor: of a flat gather's gradients: ``fp16`` or ``bf16``.
    """

    boxes: tuple[Boxing, ...]
    flat: bool
    first: int
    again: int
    ready: int
    kept: bool
    recomputed: bool = False
    compressor: Compressor | None = None

    @property
    def step(self) -> BoxingStep:
        """The all-gather of a flat gather; axes and kinds are the same for all its boxes."""
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
    """Gathers of a program: boxes of parameters with a gradient; for gather 'use' only those that communicate.

    Args:
        readers: items whose backward contributes to each value's gradient.
        passing: items whose backward runs.
        shared: parameters that other programs read too; they travel alone.
        region: recomputed range of each item, -1 for none.

    Raises:
        InputError: ops inside and outside a recomputed range read the same gathered parameter.
    """
    each_use = strategy.gather == "use"
    boxes = [
        (at, item)
        for at, item in enumerate(items)
        if isinstance(item, Boxing)
        and item.group == PARAMETER_GROUP
        and at in passing
        and (item.communicates or not each_use)
    ]
    num_boxes: dict[Ref, int] = {}
    for _, box in boxes:
        num_boxes[box.ref] = num_boxes.get(box.ref, 0) + 1

    configured = {} if strategy.sync is None else strategy.sync.parameters

    def kind(entry: tuple[int, Boxing]) -> object:
        at, box = entry
        step = box.steps[0]
        if (
            num_boxes[box.ref] > 1
            or box.ref.name in shared
            or len(box.steps) > 1
            or (step.forward, step.backward) != ("all_gather", "reduce_scatter")
        ):
            return at
        sync = configured.get(box.ref.name)
        return step.axes, graph.meta(box.ref).dtype, None if sync is None else (sync.groups, sync.compressor)

    def size(entry: tuple[int, Boxing]) -> int:
        if entry[1].ref.name in configured:
            return 0  # its group is its message, however large
        return boxing_step_bytes(graph, strategy, entry[1])[0]

    groups = [
        (members, not isinstance(label, int))
        for label, members in batch_by_kind(boxes, kind, size, strategy.bucket_bytes)
    ]
    needed = [max(_last_backward_use(graph, items, readers, box) for _, box in members) for members, _ in groups]
    again = [
        _first_recomputed_box(graph, items, readers, members, region) if each_use and max(region) >= 0 else NEVER
        for members, _ in groups
    ]
    # Backward starts with the parameters that forward used last, so these copies are kept.
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
            sync.compressor if flat and (sync := configured.get(members[0][1].ref.name)) is not None else None,
        )
        for (members, flat), need, stay, box in zip(groups, needed, stays, again, strict=True)
    )


def _first_recomputed_box(
    graph: LogicalGraph,
    items: Sequence[Item],
    readers: Mapping[ReadKey, list[int]],
    members: Sequence[tuple[int, Boxing]],
    region: Sequence[int],
) -> int:
    """The first of these boxes that is recomputed, in the last of their segments.

    ``NEVER`` if none is in a segment, or if the backward of an op after that segment needs its copy earlier: then all
    are gathered there.

    Raises:
        InputError: ops inside and outside a segment read the same gathered parameter.
    """
    for at, box in members:
        using = {region[each] for each in (*readers.get(box.key, ()), *_backward_uses(graph, items, readers, box))}
        if using - {region[at]}:
            limit = "with gather 'use', a parameter must not be read both inside and outside of a recomputed segment"
            raise InputError(RECOMPUTE_FIELD, box.ref.name, limit)
    inside = [(-region[at], at) for at, _ in members if region[at] >= 0]
    later = max(
        (_last_backward_use(graph, items, readers, box) for at, box in members if region[at] < 0), default=NEVER
    )
    if not inside:
        return NEVER
    at = min(inside)[1]
    return NEVER if later > at else at


def boxing_step_bytes(graph: LogicalGraph, strategy: Strategy, box: Boxing, *, backward: bool = False) -> list[int]:
    """Message n of every step of a box, in bytes, of the value or, with ``backward``, of its gradient."""
    meta = graph.meta(box.ref)
    whole = meta.gradient_bytes if backward else meta.num_bytes
    return [message_bytes(step, whole, strategy.mesh) for step in box.steps]


def _last_backward_use(
    graph: LogicalGraph, items: Sequence[Item], readers: Mapping[ReadKey, list[int]], box: Boxing
) -> int:
    """The last op whose backward needs the boxed parameter or a view of it; ``NEVER`` if none does."""
    return max(_backward_uses(graph, items, readers, box), default=NEVER)


def _backward_uses(
    graph: LogicalGraph, items: Sequence[Item], readers: Mapping[ReadKey, list[int]], box: Boxing
) -> list[int]:
    """Ops whose backward needs the boxed parameter or a view of it."""
    found = []
    open_keys: list[ReadKey] = [box.key]
    while open_keys:
        key = open_keys.pop()
        for at in readers.get(key, ()):
            item = items[at]
            if isinstance(item, Boxing):
                open_keys.append(item.key)
            elif sharding_of(graph, item.node).free:
                open_keys.extend(Ref(item.node.name, index) for index in range(len(item.node.outputs)))
            elif any(
                read == key and NOT_SAVED_FOR_BACKWARD.get(item.node.op) != place
                for place, read in enumerate(item.reads)
            ):
                found.append(at)
    return found
