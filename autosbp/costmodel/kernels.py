"""Kernels of a training program on one rank, forward and backward.

- Forward, a group of fused ops (``costmodel.fusion``) reads each outside tensor once and writes the results that are
  read outside, and the masks of its dropouts.
- Backward of a matmul is one more matmul for each operand's gradient, and a sum over rows for a bias. Backward of any
  other group is one pass that reads the gradients of its results and the saved tensors and writes the gradients of its
  inputs, plus one such pass for gradients of parameters, as in norms. An add passes its gradient on without a kernel.
- A matmul in float8 (``costmodel.float8``) reads float8 copies of its operands; the kernels that scale them come first.
- Gradients of a value with several readers are accumulated, and parameter gradients are added to those of earlier
  microbatches: two reads and a write.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from autosbp.cluster.hardware import Device, EfficiencyCurves
from autosbp.costmodel.efficiency import MatmulShape, kernel_s
from autosbp.costmodel.float8 import (
    KERNELS_PER_TENSOR,
    SCALED_BACKWARD,
    SCALED_FORWARD,
    float8_operands,
    float8_share,
    scaling_passes,
)
from autosbp.costmodel.local_op_work import LocalOpWork, Operand
from autosbp.graph.ir import FLOAT8
from autosbp.program.program import Op
from autosbp.sbp.factor_notation import Sharding
from autosbp.sbp.rules import sharding_of

FORWARD, INPUT, WEIGHT = "forward", "input gradient", "weight gradient"
_GRADIENT_PASSING_OPS = frozenset(("aten.add.Tensor", "aten.detach.default"))
_ACCUMULATION_PASSES = 3
"""Memory passes of an accumulation: two reads and a write, of which the arriving gradient is one read."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel, or ``launches`` equal ones; ``part`` says what they compute. Matmuls have a ``result``."""

    part: str
    dtype: str
    flops: float
    num_bytes: float
    result: MatmulShape | None = None
    launches: float = 1.0

    def seconds(self, device: Device, curves: EfficiencyCurves) -> float:
        once_s = kernel_s(device, curves, self.dtype, self.flops, self.num_bytes, self.result)
        return once_s + (self.launches - 1) * device.op_overhead_s


def program_kernels(work: LocalOpWork, groups: Sequence[Sequence[Op]]) -> Mapping[str, tuple[Kernel, ...]]:
    """Kernels of one microbatch for each group, keyed by the name of the group's first op."""
    return {group[0].node.name: tuple(_kernels(work, group)) for group in groups}


def _kernels(work: LocalOpWork, group: Sequence[Op]) -> Iterator[Kernel]:
    dtype = group[0].node.outputs[0].dtype
    flops = sum(work.flops(item) for item in group)
    read = sum(operand.num_bytes for operand in work.operands(group))
    written = sum(work.result_bytes(item) for item in work.ops_read_outside(group)) + work.mask_bytes(group)
    sharding = sharding_of(work.graph, group[0].node)
    if sharding.launches != (1.0, 1.0):
        yield from _step_kernels(work, group[0], sharding, flops, read + written)
        return
    scaled = _scaled_bytes(work, group) if flops else 0.0
    share = float8_share(group[0].node) if scaled else 1.0
    product = FLOAT8 if scaled else dtype
    if scaled:
        yield _scaling_kernel(FORWARD, dtype, scaled, share, SCALED_FORWARD)
    moved = read - (1 - share) * scaled + written
    yield Kernel(FORWARD, product, flops, moved, work.made(group) if flops else None)
    if any(item.node.name in work.graph.differentiable for item in group):
        if scaled:
            given = sum(work.result_bytes(item) for item in group)
            yield _scaling_kernel(INPUT, dtype, scaled + given, share, SCALED_BACKWARD)
        backward = (
            _product_backward(work, group, product, flops, share) if flops else _pass_backward(work, group, dtype)
        )
        yield from backward
        yield from _accumulation_kernels(work, group, dtype)


def _scaled_bytes(work: LocalOpWork, group: Sequence[Op]) -> float:
    """Bytes of the operands of a group of matmuls in float8; 0 for others."""
    positions = [float8_operands(work.graph, item.node) for item in group]
    if any(found is None for found in positions):
        return 0.0
    return sum(operand.num_bytes for operand in work.operands(group) if operand.position in (positions[0] or ()))


def _scaling_kernel(part: str, dtype: str, num_bytes: float, share: float, num_tensors: int) -> Kernel:
    moved = scaling_passes(share) * num_bytes
    return Kernel(part, dtype, 0.0, moved, launches=KERNELS_PER_TENSOR * num_tensors)


def _step_kernels(work: LocalOpWork, item: Op, sharding: Sharding, flops: float, num_bytes: float) -> Iterator[Kernel]:
    """Kernels of an op that runs steps one after another."""
    dtype, (forward, backward) = item.node.outputs[0].dtype, sharding.launches
    moved, again = sharding.traffic * num_bytes, max(2.0, backward / forward)
    yield Kernel(FORWARD, dtype, flops, moved, launches=forward)
    if item.node.name in work.graph.differentiable:
        yield Kernel(INPUT, dtype, again * flops, again * moved, launches=backward)
        yield from _accumulation_kernels(work, [item], dtype)


def _product_backward(
    work: LocalOpWork, group: Sequence[Op], dtype: str, flops: float, share: float
) -> Iterator[Kernel]:
    """Products of backward, which read ``share`` of the bytes of their operands."""
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
        read = share * (given + others)
        yield Kernel(part, dtype, flops, read + sizes[at], work.gradient(group, at, sizes[at]))


def _pass_backward(work: LocalOpWork, group: Sequence[Op], dtype: str) -> Iterator[Kernel]:
    written = {INPUT: 0.0, WEIGHT: 0.0}
    for operand in work.operands(group):
        if work.graph.has_gradient(operand.ref) and not _passes_gradient_on(work, group, operand):
            written[_part(work, operand)] += operand.num_bytes
    given = sum(work.result_bytes(item) for item in work.ops_read_outside(group))
    read = given + work.saved_bytes(group) + work.mask_bytes(group)
    yield from (Kernel(part, dtype, 0.0, read + size) for part, size in written.items() if size)


def _passes_gradient_on(work: LocalOpWork, group: Sequence[Op], operand: Operand) -> bool:
    """Whether an operand's gradient equals that of the group's result."""
    first = next(at for at, item in enumerate(group) if operand.read in item.reads)
    shapes = {work.graph.meta(operand.ref).shape, *(item.node.outputs[0].shape for item in group[first:])}
    return len(shapes) == 1 and all(item.node.op in _GRADIENT_PASSING_OPS for item in group[first:])


def _accumulation_kernels(work: LocalOpWork, group: Sequence[Op], dtype: str) -> Iterator[Kernel]:
    for item in group:
        more = work.num_readers(item) - 1
        if more > 0 and item.node.name in work.graph.differentiable:
            yield Kernel(INPUT, dtype, 0.0, _ACCUMULATION_PASSES * more * work.result_bytes(item))
    for operand in work.operands(group):
        if _part(work, operand) == WEIGHT and work.graph.has_gradient(operand.ref):
            meta = work.graph.meta(operand.ref)
            share = meta.gradient_bytes / meta.num_bytes if meta.num_bytes else 1.0
            moved = (_ACCUMULATION_PASSES - 1) * share * operand.num_bytes + operand.num_bytes
            yield Kernel(WEIGHT, dtype, 0.0, moved)


def _part(work: LocalOpWork, operand: Operand) -> str:
    return WEIGHT if operand.ref.name in work.graph.parameter_names else INPUT
