"""Elementwise ops without data: what each keeps, and what its backward makes on the way (torch's derivatives.yaml)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from autosbp.costmodel.memory.autograd import Machine
from autosbp.costmodel.memory.tensors import Shape, Tensor, broadcast, contiguous, dense_like


@dataclass(frozen=True, slots=True)
class Unary:
    """``keeps``: ``i`` the input, ``o`` the output, else nothing. ``between``: results between the gradient and what it
    becomes, which live until it is there. ``passes``: the gradient is handed on as it is."""

    keeps: str = ""
    between: int = 0
    passes: bool = False


UNARY: Mapping[str, Unary] = {
    "aten.relu.default": Unary("o"),
    "aten.gelu.default": Unary("i"),
    "aten.silu.default": Unary("i"),
    "aten.tanh.default": Unary("o"),
    "aten.sigmoid.default": Unary("o"),
    "aten.exp.default": Unary("o"),
    "aten.log.default": Unary("i"),
    "aten.neg.default": Unary(),
    "aten.rsqrt.default": Unary("o", between=2),
    "aten.sqrt.default": Unary("o", between=1),
    "aten.pow.Tensor_Scalar": Unary("i", between=2),
    "aten.abs.default": Unary("i", between=1),
    "aten.sin.default": Unary("i", between=1),
    "aten.cos.default": Unary("i", between=2),
    "aten.clamp.default": Unary("i", between=1),
    "aten.softplus.default": Unary("i"),
    "aten.leaky_relu.default": Unary("i"),
    "aten.hardtanh.default": Unary("i"),
    "aten.elu.default": Unary("o"),
    "aten.detach.default": Unary(passes=True),
}
_SCALED = ("aten.mul.Tensor", "aten.div.Tensor", "aten.mul.Scalar", "aten.div.Scalar")
_SUMS = ("aten.add.Tensor", "aten.sub.Tensor", "aten.add.Scalar", "aten.sub.Scalar", "aten.rsub.Scalar")


def unary(m: Machine, x: Tensor, kind: Unary) -> Tensor:
    """One tensor to one of its shape."""
    out = m.new(x.shape, x.width, dense_like(x.shape, x.strides))

    def run(grads: list[Any], _: Sequence[Any]) -> list[Tensor]:
        if kind.passes:
            return [grads[0]]
        between = [m.like(grads[0]) for _ in range(kind.between)]
        found = [m.new(grads[0].shape, grads[0].width, dense_like(grads[0].shape, grads[0].strides))]
        del between
        return found

    m.record([out], [x], {"i": [x], "o": [out]}.get(kind.keeps, []), run)
    return out


def reduced(m: Machine, gradient: Tensor, shape: Shape) -> Tensor:
    """The gradient of what was stretched to the gradient's shape: summed over what was stretched."""
    if gradient.shape == shape:
        return gradient
    if prod(gradient.shape) == prod(shape):
        return gradient.view(shape, contiguous(shape))
    return m.new(shape, gradient.width)


def scalar(m: Machine, op: str, x: Tensor, width: int) -> Tensor:
    """An op with a number: sums hand gradients on, products make new ones."""
    out = m.new(x.shape, width, dense_like(x.shape, x.strides))
    m.record([out], [x], [], lambda grads, _: [grads[0] if op in _SUMS else m.like(grads[0])])
    return out


def binary(m: Machine, op: str, one: Tensor, two: Tensor, width: int) -> Tensor:
    """Sums, products and quotients of two tensors, stretched to one another."""
    shape = broadcast((one.shape, two.shape))
    strided = next((each for each in (one, two) if each.shape == shape), None)
    out = m.new(shape, width, dense_like(shape, strided.strides) if strided is not None else None)
    shapes, flows = (one.shape, two.shape), (one.node is not None, two.node is not None)
    if op in _SUMS:
        minus = op == "aten.sub.Tensor"

        def run(grads: list[Any], _: Sequence[Any]) -> list[Tensor | None]:
            second = (m.like(grads[0]) if minus else grads[0]) if flows[1] else None
            return _reduced(m, [grads[0] if flows[0] else None, second], shapes)

        m.record([out], [one, two], [], run)
        return out
    quotient = op.startswith("aten.div.")
    kept = ([two] if flows[0] or (quotient and flows[1]) else []) + ([one] if flows[1] else [])

    def backward(grads: list[Any], _: Sequence[Any]) -> list[Tensor | None]:
        first = m.like(grads[0]) if flows[0] else None
        second = None
        if flows[1]:
            between = [m.like(grads[0]) for _ in range(3 if quotient else 0)]
            second = m.like(grads[0])
            del between
        return _reduced(m, [first, second], shapes)

    m.record([out], [one, two], kept, backward)
    return out


def _reduced(m: Machine, grads: list[Tensor | None], shapes: Sequence[Shape]) -> list[Tensor | None]:
    for at, shape in enumerate(shapes):
        one = grads[at]
        grads[at] = None
        if one is not None:
            one = reduced(m, one, shape)
        grads[at] = one
    return grads


def chosen(m: Machine, condition: Tensor, one: Tensor | None, two: Tensor | None, width: int) -> Tensor:
    """``where`` and ``masked_fill``: each gradient is the whole one with zeros where the other was taken."""
    tensors = [each for each in (one, two) if each is not None]
    shape = broadcast([condition.shape, *(each.shape for each in tensors)])
    out = m.new(shape, width)
    shapes = [each.shape for each in tensors]
    flows = [each.node is not None for each in tensors]

    def run(grads: list[Any], _: Sequence[Any]) -> list[Tensor | None]:
        return _reduced(m, [m.like(grads[0]) if flow else None for flow in flows], shapes)

    m.record([out], tensors, [condition], run)
    return out


def cast(m: Machine, x: Tensor, width: int) -> Tensor:
    """A copy in another dtype, whose gradient is one in the old dtype."""
    out, before = m.new(x.shape, width, dense_like(x.shape, x.strides)), x.width
    m.record([out], [x], [], lambda grads, _: [m.new(grads[0].shape, before)])
    return out


def dropped(m: Machine, x: Tensor) -> Tensor:
    """Dropout in training: on CPU the noise that the input was multiplied by is kept, on GPUs a mask of bytes."""
    noise = m.new(x.shape, x.width if m.device == "cpu" else 1)
    out = m.like(x)
    m.record([out], [x], [noise], lambda grads, _: [m.like(grads[0])])
    return out
