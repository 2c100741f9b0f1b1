"""Elementwise ops without data: what each keeps, and what its backward makes on the way (torch's derivatives.yaml)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autosbp.costmodel.memory.autograd import Machine
from autosbp.costmodel.memory.tensors import Shape, Tensor, broadcast, dense_like


@dataclass(frozen=True, slots=True)
class Unary:
    """``keeps``: ``i`` the input, ``o`` the output, ``b`` a buffer as large, else nothing. ``between``: results between the
    gradient and what it becomes, which live until it is there; ``masks``: the same, of one byte an element. ``passes``: the
    gradient is handed on as it is."""

    keeps: str = ""
    between: int = 0
    masks: int = 0
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
    "aten.clamp.default": Unary("i", masks=2),
    "aten.softplus.default": Unary("i"),
    "aten.leaky_relu.default": Unary("i"),
    "aten.hardtanh.default": Unary("i"),
    "aten.elu.default": Unary("o"),
    "aten.detach.default": Unary(passes=True),
    "aten.acos.default": Unary("i", between=5),
    "aten.acosh.default": Unary("i", between=3),
    "aten.asin.default": Unary("i", between=4),
    "aten.asinh.default": Unary("i", between=3),
    "aten.atan.default": Unary("i", between=2),
    "aten.atanh.default": Unary("i", between=3),
    "aten.ceil.default": Unary(),
    "aten.celu.default": Unary("i"),
    "aten.clamp_max.default": Unary("i", masks=1),
    "aten.clamp_min.default": Unary("i", masks=1),
    "aten.cosh.default": Unary("i", between=1),
    "aten.erf.default": Unary("i", between=4),
    "aten.erfc.default": Unary("i", between=4),
    "aten.erfinv.default": Unary("i", between=4),
    "aten.exp2.default": Unary("o", between=1),
    "aten.expm1.default": Unary("o", between=1),
    "aten.floor.default": Unary(),
    "aten.hardshrink.default": Unary("i"),
    "aten.hardsigmoid.default": Unary("i"),
    "aten.hardswish.default": Unary("i"),
    "aten.lgamma.default": Unary("i", between=1),
    "aten.log10.default": Unary("i", between=1),
    "aten.log1p.default": Unary("i", between=1),
    "aten.log2.default": Unary("i", between=1),
    "aten.log_sigmoid.default": Unary("ib"),
    "aten.logit.default": Unary("i"),
    "aten.mish.default": Unary("i"),
    "aten.nan_to_num.default": Unary("i", masks=3),
    "aten.reciprocal.default": Unary("o", between=2),
    "aten.relu6.default": Unary("i"),
    "aten.round.default": Unary(),
    "aten.selu.default": Unary("i"),
    "aten.sign.default": Unary(),
    "aten.sinc.default": Unary("i", between=7),
    "aten.sinh.default": Unary("i", between=1),
    "aten.softshrink.default": Unary("i"),
    "aten.square.default": Unary("i", between=2),
    "aten.tan.default": Unary("o", between=2),
    "aten.threshold.default": Unary("i"),
    "aten.trunc.default": Unary(),
    "aten.frac.default": Unary(passes=True),
    "aten.pow.Scalar": Unary("io", between=1),
}
_SCALED = ("aten.mul.Tensor", "aten.div.Tensor", "aten.mul.Scalar", "aten.div.Scalar")
_SUMS = ("aten.add.Tensor", "aten.sub.Tensor", "aten.add.Scalar", "aten.sub.Scalar", "aten.rsub.Scalar")


def unary(m: Machine, x: Tensor, kind: Unary) -> Tensor:
    """One tensor to one of its shape."""
    out = m.new(x.shape, x.width, dense_like(x.shape, x.strides))
    order = out.strides

    def run(grads: list[Any], _: Sequence[Any]) -> list[Tensor]:
        if kind.passes:
            return [grads[0]]
        between = [m.like(grads[0]) for _ in range(kind.between)]
        between += [m.new(grads[0].shape, 1) for _ in range(kind.masks)]
        # A stretched gradient has no order of its own: that of what it is multiplied with.
        strides = order if kind.keeps and 0 in grads[0].strides else dense_like(grads[0].shape, grads[0].strides)
        found = [m.new(grads[0].shape, grads[0].width, strides)]
        del between
        return found

    m.record([out], [x], [_kept(m, letter, x, out) for letter in kind.keeps], run)
    return out


def _kept(m: Machine, letter: str, x: Tensor, out: Tensor) -> Tensor:
    return {"i": x, "o": out}.get(letter) or m.like(x)


def reduced(m: Machine, gradient: Tensor, shape: Shape) -> Tensor:
    """The gradient of what was stretched to the gradient's shape: summed over what was stretched."""
    if gradient.shape == shape:
        return gradient
    total = m.new(shape, gradient.width)
    return total.view(shape, total.strides) if len(shape) < len(gradient.shape) else total


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
    widths = one.width, two.width
    if op in _SUMS:
        minus = op == "aten.sub.Tensor"

        def run(grads: list[Any], _: Sequence[Any]) -> list[Tensor | None]:
            second = (m.like(grads[0]) if minus else grads[0]) if flows[1] else None
            return _reduced(m, [grads[0] if flows[0] else None, second], shapes, widths)

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
        return _reduced(m, [first, second], shapes, widths)

    m.record([out], [one, two], kept, backward)
    return out


def _reduced(
    m: Machine, grads: list[Tensor | None], shapes: Sequence[Shape], widths: Sequence[int]
) -> list[Tensor | None]:
    """Each gradient in the shape and the width of its input, one after another."""
    for at, (shape, width) in enumerate(zip(shapes, widths, strict=True)):
        one = grads[at]
        grads[at] = None
        if one is not None:
            one = reduced(m, one, shape)
            if one.width != width:
                one = m.new(one.shape, width)
        grads[at] = one
    return grads


def chosen(m: Machine, condition: Tensor, one: Tensor | None, two: Tensor | None, width: int) -> Tensor:
    """``where`` and ``masked_fill``: each gradient is the whole one with zeros where the other was taken."""
    tensors = [each for each in (one, two) if each is not None]
    shape = broadcast([condition.shape, *(each.shape for each in tensors)])
    out = m.new(shape, width)
    shapes = [each.shape for each in tensors]
    flows, widths = [each.node is not None for each in tensors], [each.width for each in tensors]

    def run(grads: list[Any], _: Sequence[Any]) -> list[Tensor | None]:
        return _reduced(m, [m.like(grads[0]) if flow else None for flow in flows], shapes, widths)

    m.record([out], tensors, [condition], run)
    return out


def cast(m: Machine, x: Tensor, width: int) -> Tensor:
    """A copy in another dtype, whose gradient is one in the old dtype."""
    out, before = m.new(x.shape, width, dense_like(x.shape, x.strides)), x.width
    m.record([out], [x], [], lambda grads, _: [m.new(grads[0].shape, before)])
    return out


def copied(m: Machine, x: Tensor) -> Tensor:
    """``clone``: hands the gradient on."""
    out = m.new(x.shape, x.width, dense_like(x.shape, x.strides))
    m.record([out], [x], [], lambda grads, _: [grads[0]])
    return out


def dropped(m: Machine, x: Tensor) -> Tensor:
    """Dropout in training: on CPU the noise that the input was multiplied by is kept, on GPUs a mask of bytes."""
    noise = m.new(x.shape, x.width if m.device == "cpu" else 1)
    out = m.like(x)
    m.record([out], [x], [noise], lambda grads, _: [m.like(grads[0])])
    return out
