"""The kernels of a training program, forward and backward, as one rank runs them.

- Forward, a group of fused ops (``costmodel.fusion``) reads each outside tensor once and writes what is read outside, and
  the masks of its dropouts.
- Backward of a product is one more product for each operand's gradient, and a sum over rows for a bias. Backward of
  anything else is one pass that reads the gradients of its results and what was kept and writes the gradients of its
  inputs, and one more such pass for gradients of parameters, as norms have. A sum hands its gradient on: no kernel.
- The gradients of a value with several readers are added up, and those of a parameter are added to what earlier
  microbatches left: two reads and a write.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from autosbp.cluster import Curves, Device
from autosbp.costmodel.efficiency import Result, kernel_s
from autosbp.costmodel.local_work import LocalWork, Operand
from autosbp.sbp.program import Op
from autosbp.sbp.rules import sharding_of

FORWARD, INPUT, WEIGHT = "forward", "input gradient", "weight gradient"
_HANDS_ON = frozenset(("aten.add.Tensor", "aten.detach.default"))
_ADD_UP = 3
"""Passes over a tensor that is added to another: two reads and a write."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One launch; ``part`` tells what it computes. Products have a ``result``."""

    part: str
    dtype: str
    flops: float
    num_bytes: float
    result: Result | None = None

    def seconds(self, device: Device, curves: Curves) -> float:
        return kernel_s(device, curves, self.dtype, self.flops, self.num_bytes, self.result)


def program_kernels(work: LocalWork, groups: Sequence[Sequence[Op]]) -> Mapping[str, tuple[Kernel, ...]]:
    """The kernels of one microbatch for each group, by the name of its first op."""
    return {group[0].node.name: tuple(_kernels(work, group)) for group in groups}


def _kernels(work: LocalWork, group: Sequence[Op]) -> Iterator[Kernel]:
    dtype = group[0].node.outputs[0].dtype
    flops = sum(work.flops(item) for item in group)
    read = sum(operand.num_bytes for operand in work.operands(group))
    written = sum(work.result_bytes(item) for item in work.escaping(group)) + work.mask_bytes(group)
    yield Kernel(FORWARD, dtype, flops, read + written, work.made(group) if flops else None)
    if any(item.node.name in work.graph.differentiable for item in group):
        yield from _product_backward(work, group, dtype, flops) if flops else _pass_backward(work, group, dtype)
        yield from _added_up(work, group, dtype)


def _product_backward(work: LocalWork, group: Sequence[Op], dtype: str, flops: float) -> Iterator[Kernel]:
    additive = sharding_of(work.graph, group[0].node).additive
    given = sum(work.result_bytes(item) for item in group)
    operands: dict[int, list[Operand]] = {}
    for operand in work.operands(group):
        operands.setdefault(operand.position, []).append(operand)
    sizes = {at: sum(operand.num_bytes for operand in found) for at, found in operands.items()}
    for at, found in operands.items():
        if not any(work.graph.has_gradient(operand.ref) for operand in found):
            continue
        part = _part(work, found[0])
        if at in additive:
            yield Kernel(part, dtype, 0.0, given + sizes[at])
            continue
        others = sum(size for other, size in sizes.items() if other not in additive and other != at)
        yield Kernel(part, dtype, flops, given + others + sizes[at], work.gradient(group, at, sizes[at]))


def _pass_backward(work: LocalWork, group: Sequence[Op], dtype: str) -> Iterator[Kernel]:
    written = {INPUT: 0.0, WEIGHT: 0.0}
    for operand in work.operands(group):
        if work.graph.has_gradient(operand.ref) and not _handed_on(work, group, operand):
            written[_part(work, operand)] += operand.num_bytes
    given = sum(work.result_bytes(item) for item in work.escaping(group))
    read = given + work.kept_bytes(group) + work.mask_bytes(group)
    yield from (Kernel(part, dtype, 0.0, read + size) for part, size in written.items() if size)


def _handed_on(work: LocalWork, group: Sequence[Op], operand: Operand) -> bool:
    """Whether the gradient of an operand is that of the group's result, unchanged."""
    first = next(at for at, item in enumerate(group) if operand.read in item.reads)
    shapes = {work.graph.meta(operand.ref).shape, *(item.node.outputs[0].shape for item in group[first:])}
    return len(shapes) == 1 and all(item.node.op in _HANDS_ON for item in group[first:])


def _added_up(work: LocalWork, group: Sequence[Op], dtype: str) -> Iterator[Kernel]:
    for item in group:
        more = work.num_readers(item) - 1
        if more > 0 and item.node.name in work.graph.differentiable:
            yield Kernel(INPUT, dtype, 0.0, _ADD_UP * more * work.result_bytes(item))
    for operand in work.operands(group):
        if _part(work, operand) == WEIGHT and work.graph.has_gradient(operand.ref):
            yield Kernel(WEIGHT, dtype, 0.0, _ADD_UP * operand.num_bytes)


def _part(work: LocalWork, operand: Operand) -> str:
    return WEIGHT if operand.ref.name in work.graph.parameter_names else INPUT
