"""Boxing steps without data: what ``executor.ops`` and ``executor._dist`` allocate on the way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autosbp.costmodel.memory.autograd import Machine
from autosbp.costmodel.memory.tensors import Tensor
from autosbp.costmodel.memory.views import plain_reshape
from autosbp.sbp.boxing import Step
from autosbp.sbp.mesh import Mesh


def boxed(m: Machine, x: Tensor, steps: Sequence[Step], mesh: Mesh) -> Tensor:
    """A value through the steps of its path, with the backward of each."""
    for step in steps:
        x = _step(m, x, step, mesh)
    return x


def _step(m: Machine, x: Tensor, step: Step, mesh: Mesh) -> Tensor:
    size = mesh.group_size(step.axes)
    out = act(m, x, step.forward, step.src_dim, step.dst_dim, size)

    def run(grads: list[Any], _: Sequence[Any]) -> list[Tensor]:
        return [act(m, grads[0], step.backward, step.dst_dim, step.src_dim, size)]

    m.record([out], [x] if step.reduction == "sum" else [], [], run)
    return out


def ahead(m: Machine, x: Tensor, steps: Sequence[Step], mesh: Mesh) -> Tensor:
    """The same without autograd."""
    for step in steps:
        x = act(m, x, step.forward, step.src_dim, step.dst_dim, mesh.group_size(step.axes))
    return x


def back(m: Machine, gradient: Tensor, steps: Sequence[Step], mesh: Mesh) -> Tensor:
    """A gradient through the steps in reverse."""
    for step in reversed(steps):
        gradient = act(m, gradient, step.backward, step.dst_dim, step.src_dim, mesh.group_size(step.axes))
    return gradient


def act(m: Machine, x: Tensor, action: str, src_dim: int, dst_dim: int, size: int) -> Tensor:
    """One action over a group of ``size`` ranks, from S(src_dim) (or -1) to S(dst_dim) (or -1)."""
    if action == "none" or size == 1:
        return x.view(x.shape, x.strides)
    if action in ("mask", "p2p"):
        return m.like(x)
    if action == "all_reduce":
        source = _packed(m, x)
        return m.like(source)
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
        source = _packed(m, x) if dst_dim == 0 else m.like(x)
        part = m.new(_scaled(x, dst_dim, 1, size), x.width)
        stage(m, source)
        return part
    source = m.like(x) if dst_dim else _packed(m, x)
    out = m.like(source)
    shape = list(x.shape)
    shape[dst_dim] //= size
    shape[src_dim] *= size
    return plain_reshape(m, out, tuple(shape)) if src_dim == 0 else m.new(tuple(shape), x.width)


def stage(m: Machine, whole: Tensor) -> None:
    """Gloo reduces a copy of what it scatters; NCCL reduces in place."""
    if m.device == "cpu":
        m.like(whole)


def _packed(m: Machine, x: Tensor) -> Tensor:
    return x if x.is_contiguous else m.like(x)


def _scaled(x: Tensor, dim: int, times: int, parts: int) -> tuple[int, ...]:
    shape = list(x.shape)
    shape[dim] = shape[dim] * times // parts
    return tuple(shape)
