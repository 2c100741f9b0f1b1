"""Boxing steps on meta tensors: allocations of ``executor.comm_ops`` and ``executor._torch_distributed``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autosbp.costmodel.memory.autograd import MetaAutograd
from autosbp.costmodel.memory.meta_tensors import MetaTensor
from autosbp.costmodel.memory.views import plain_reshape
from autosbp.sbp.boxing import BoxingStep
from autosbp.sbp.mesh import Mesh


def box(m: MetaAutograd, x: MetaTensor, steps: Sequence[BoxingStep], mesh: Mesh) -> MetaTensor:
    """Box a value through the steps of its path, with the backward of each step."""
    for step in steps:
        x = _step(m, x, step, mesh)
    return x


def _step(m: MetaAutograd, x: MetaTensor, step: BoxingStep, mesh: Mesh) -> MetaTensor:
    size = mesh.group_size(step.axes)
    out = run_action(m, x, step.forward, step.src_dim, step.dst_dim, size)

    def run(grads: list[Any], _: Sequence[Any]) -> list[MetaTensor]:
        return [run_action(m, grads[0], step.backward, step.dst_dim, step.src_dim, size)]

    m.record([out], [x] if step.reduction == "sum" else [], [], run)
    return out


def box_without_autograd(m: MetaAutograd, x: MetaTensor, steps: Sequence[BoxingStep], mesh: Mesh) -> MetaTensor:
    """Box a value without autograd."""
    for step in steps:
        x = run_action(m, x, step.forward, step.src_dim, step.dst_dim, mesh.group_size(step.axes))
    return x


def box_gradient(m: MetaAutograd, gradient: MetaTensor, steps: Sequence[BoxingStep], mesh: Mesh) -> MetaTensor:
    """Send a gradient through the steps in reverse."""
    for step in reversed(steps):
        gradient = run_action(m, gradient, step.backward, step.dst_dim, step.src_dim, mesh.group_size(step.axes))
    return gradient


def run_action(m: MetaAutograd, x: MetaTensor, action: str, src_dim: int, dst_dim: int, size: int) -> MetaTensor:
    """One action over a group of ``size`` ranks, from S(src_dim) to S(dst_dim); a dim of -1 is not split."""
    if action == "none" or size == 1:
        return x.view(x.shape, x.strides)
    if action in ("mask", "p2p"):
        return m.empty_like(x)
    if action == "all_reduce":
        source = _packed(m, x)
        return m.empty_like(source)
    if action == "slice":
        return _packed(m, x.view(_scaled(x, dst_dim, 1, size), x.strides))
    if action == "pad":
        return m.new(_scaled(x, src_dim, size, 1), x.width)
    source = x
    if action == "all_gather":
        source = _packed(m, x)
        out = m.new(_scaled(x, 0, size, 1) if x.shape else (size,), x.width)
        return out if src_dim == 0 else m.new(_scaled(x, src_dim, size, 1), x.width)
    if action == "reduce_scatter":
        source = _packed(m, x) if dst_dim == 0 else m.empty_like(x)
        part = m.new(_scaled(x, dst_dim, 1, size), x.width)
        gloo_staging_copy(m, source)
        return part
    source = m.empty_like(x) if dst_dim else _packed(m, x)
    out = m.empty_like(source)
    shape = list(x.shape)
    shape[dst_dim] //= size
    shape[src_dim] *= size
    return plain_reshape(m, out, tuple(shape)) if src_dim == 0 else m.new(tuple(shape), x.width)


def gloo_staging_copy(m: MetaAutograd, whole: MetaTensor) -> None:
    """Gloo reduces a copy of its input in a reduce-scatter; NCCL reduces in place."""
    if m.device == "cpu":
        m.empty_like(whole)


def _packed(m: MetaAutograd, x: MetaTensor) -> MetaTensor:
    return x if x.is_contiguous else m.empty_like(x)


def _scaled(x: MetaTensor, dim: int, times: int, parts: int) -> tuple[int, ...]:
    shape = list(x.shape)
    shape[dim] = shape[dim] * times // parts
    return tuple(shape)
