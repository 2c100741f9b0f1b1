"""Views, copies that a shape needs, and joins of tensors without data."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from autosbp.costmodel.memory.autograd import Machine
from autosbp.costmodel.memory.pointwise import reduced
from autosbp.costmodel.memory.tensors import Shape, Tensor, viewed


def reshaped(m: Machine, x: Tensor, shape: Shape) -> Tensor:
    """A view where memory allows one, else a copy; the gradient comes back in the same way."""
    before, strides = x.shape, viewed(x.shape, x.strides, shape)
    out = m.new(shape, x.width) if strides is None else x.view(shape, strides)
    m.record([out], [x], [], lambda grads, _: [plain_reshape(m, grads[0], before)])
    return out


def plain_reshape(m: Machine, x: Tensor, shape: Shape) -> Tensor:
    """As ``reshaped``, without a gradient."""
    strides = viewed(x.shape, x.strides, shape)
    return m.new(shape, x.width) if strides is None else x.view(shape, strides)


def packed(m: Machine, x: Tensor) -> Tensor:
    """``contiguous``."""
    if x.is_contiguous:
        return x
    out = m.like(x)
    m.record([out], [x], [], lambda grads, _: [grads[0]])
    return out


def permuted(m: Machine, x: Tensor, dims: Sequence[int]) -> Tensor:
    """Dims in another order."""
    out = _permute(x, dims)
    back = [0] * len(dims)
    for at, dim in enumerate(dims):
        back[dim] = at
    m.record([out], [x], [], lambda grads, _: [_permute(grads[0], back)])
    return out


def _permute(x: Tensor, dims: Sequence[int]) -> Tensor:
    return x.view(tuple(x.shape[dim] for dim in dims), tuple(x.strides[dim] for dim in dims))


def transposed(m: Machine, x: Tensor, one: int, two: int) -> Tensor:
    """Two dims change places."""
    dims = list(range(len(x.shape)))
    dims[one], dims[two] = dims[two], dims[one]
    return permuted(m, x, dims)


def cut(m: Machine, x: Tensor, shape: Shape, strides: Shape | None = None) -> Tensor:
    """A part of a tensor; its gradient is a whole one of zeros but for that part."""
    before, width = x.shape, x.width
    out = x.view(shape, x.strides if strides is None else strides)
    m.record([out], [x], [], lambda _, __: [m.new(before, width)])
    return out


def stretched(m: Machine, x: Tensor, shape: Shape) -> Tensor:
    """``expand``: repeated without a copy."""
    lead = len(shape) - len(x.shape)
    sizes = (1,) * lead + x.shape
    strides = (0,) * lead + x.strides
    before = x.shape
    out = x.view(
        shape, tuple(s if size == old else 0 for s, size, old in zip(strides, shape, sizes, strict=True))
    )  # fmt: skip
    m.record([out], [x], [], lambda grads, _: [reduced(m, grads[0], before)])
    return out


def summed(m: Machine, x: Tensor, shape: Shape, width: int, *, mean: bool = False) -> Tensor:
    """A sum, whose gradient is stretched, or a mean, whose gradient is also divided. Of another dtype than what is added up,
    which a CPU then copies, the gradient is one in the old dtype."""
    out, before, old_width = m.new(shape, width), x.shape, x.width
    if old_width != width and m.device == "cpu":
        m.new(before, width)

    def run(grads: list[Any], _: Sequence[Any]) -> list[Tensor]:
        found = m.new(before, grads[0].width) if mean else grads[0].view(before, (0,) * len(before))
        return [found if old_width == width else m.new(before, old_width)]

    m.record([out], [x], [], run)
    return out


def joined(m: Machine, parts: Sequence[Tensor], shape: Shape, width: int) -> Tensor:
    """``cat``: each part's gradient is a view of the whole one."""
    out = m.new(shape, width)
    sizes = [part.shape for part in parts]
    m.record([out], parts, [], lambda grads, _: [grads[0].view(size, grads[0].strides) for size in sizes])
    return out


def matrix(x: Tensor) -> Shape:
    """Leading dims as one."""
    return (prod(x.shape[:-1]), x.shape[-1])
