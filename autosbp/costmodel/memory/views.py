"""Views, copies for reshapes, and concatenation of meta tensors."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from autosbp.costmodel.memory.autograd import MetaAutograd
from autosbp.costmodel.memory.meta_tensors import MetaTensor, Shape, view_strides
from autosbp.costmodel.memory.pointwise import sum_to_shape


def reshape(m: MetaAutograd, x: MetaTensor, shape: Shape) -> MetaTensor:
    """A view if the strides allow one, else a copy; the gradient is reshaped back in the same way."""
    before, strides = x.shape, view_strides(x.shape, x.strides, shape)
    out = m.new(shape, x.width) if strides is None else x.view(shape, strides)
    m.record([out], [x], [], lambda grads, _: [plain_reshape(m, grads[0], before)])
    return out


def plain_reshape(m: MetaAutograd, x: MetaTensor, shape: Shape) -> MetaTensor:
    """``reshape`` without a gradient."""
    strides = view_strides(x.shape, x.strides, shape)
    return m.new(shape, x.width) if strides is None else x.view(shape, strides)


def contiguous_copy(m: MetaAutograd, x: MetaTensor) -> MetaTensor:
    """``contiguous``."""
    if x.is_contiguous:
        return x
    out = m.empty_like(x)
    m.record([out], [x], [], lambda grads, _: [grads[0]])
    return out


def permute(m: MetaAutograd, x: MetaTensor, dims: Sequence[int]) -> MetaTensor:
    """``permute``."""
    out = _permute(x, dims)
    back = [0] * len(dims)
    for at, dim in enumerate(dims):
        back[dim] = at
    m.record([out], [x], [], lambda grads, _: [_permute(grads[0], back)])
    return out


def _permute(x: MetaTensor, dims: Sequence[int]) -> MetaTensor:
    return x.view(tuple(x.shape[dim] for dim in dims), tuple(x.strides[dim] for dim in dims))


def transpose(m: MetaAutograd, x: MetaTensor, one: int, two: int) -> MetaTensor:
    """Swap two dims."""
    dims = list(range(len(x.shape)))
    dims[one], dims[two] = dims[two], dims[one]
    return permute(m, x, dims)


def slice_view(m: MetaAutograd, x: MetaTensor, shape: Shape, strides: Shape | None = None) -> MetaTensor:
    """A slice of a tensor; its gradient is full-size, with zeros outside of the slice."""
    before, width = x.shape, x.width
    out = x.view(shape, x.strides if strides is None else strides)
    m.record([out], [x], [], lambda _, __: [m.new(before, width)])
    return out


def expand(m: MetaAutograd, x: MetaTensor, shape: Shape) -> MetaTensor:
    """``expand``: repeated without a copy."""
    lead = len(shape) - len(x.shape)
    sizes = (1,) * lead + x.shape
    strides = (0,) * lead + x.strides
    before = x.shape
    out = x.view(
        shape, tuple(s if size == old else 0 for s, size, old in zip(strides, shape, sizes, strict=True))
    )  # fmt: skip
    m.record([out], [x], [], lambda grads, _: [sum_to_shape(m, grads[0], before)])
    return out


def sum_or_mean(m: MetaAutograd, x: MetaTensor, shape: Shape, width: int, *, mean: bool = False) -> MetaTensor:
    """A sum, whose gradient is expanded, or a mean, whose gradient is also divided.

    If the result has another dtype, a CPU copies the input to it, and the gradient is cast to the old dtype.
    """
    out, before, old_width = m.new(shape, width), x.shape, x.width
    if old_width != width and m.device == "cpu":
        m.new(before, width)

    def run(grads: list[Any], _: Sequence[Any]) -> list[MetaTensor]:
        found = m.new(before, grads[0].width) if mean else grads[0].view(before, (0,) * len(before))
        return [found if old_width == width else m.new(before, old_width)]

    m.record([out], [x], [], run)
    return out


def cat(m: MetaAutograd, parts: Sequence[MetaTensor], shape: Shape, width: int) -> MetaTensor:
    """``cat``: each part's gradient is a view of the full one."""
    out = m.new(shape, width)
    sizes = [part.shape for part in parts]
    m.record([out], parts, [], lambda grads, _: [grads[0].view(size, grads[0].strides) for size in sizes])
    return out


def flattened_shape(x: MetaTensor) -> Shape:
    """Shape with all leading dims merged into one."""
    return (prod(x.shape[:-1]), x.shape[-1])
