"""Elementwise ops on meta tensors: saved tensors, and temporaries of backward (torch's derivatives.yaml)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autosbp.costmodel.memory.autograd import MetaAutograd
from autosbp.costmodel.memory.meta_tensors import MetaTensor, Shape, broadcast, dense_strides_like


@dataclass(frozen=True, slots=True)
class UnaryMemory:
    """Memory of an elementwise op with one input.

    Args:
        keeps: saved tensors: ``i`` the input, ``o`` the output, ``b`` a buffer of the same size.
        between: temporaries of backward that live until the input's gradient is complete.
        masks: further temporaries of one byte per element.
        passes: the gradient is passed on unchanged.
    """

    saves: str = ""
    between: int = 0
    byte_masks: int = 0
    passes: bool = False


UNARY: Mapping[str, UnaryMemory] = {
    "aten.relu.default": UnaryMemory("o"),
    "aten.gelu.default": UnaryMemory("i"),
    "aten.silu.default": UnaryMemory("i"),
    "aten.tanh.default": UnaryMemory("o"),
    "aten.sigmoid.default": UnaryMemory("o"),
    "aten.exp.default": UnaryMemory("o"),
    "aten.log.default": UnaryMemory("i"),
    "aten.neg.default": UnaryMemory(),
    "aten.rsqrt.default": UnaryMemory("o", between=2),
    "aten.sqrt.default": UnaryMemory("o", between=1),
    "aten.pow.Tensor_Scalar": UnaryMemory("i", between=2),
    "aten.abs.default": UnaryMemory("i", between=1),
    "aten.sin.default": UnaryMemory("i", between=1),
    "aten.cos.default": UnaryMemory("i", between=2),
    "aten.clamp.default": UnaryMemory("i", byte_masks=2),
    "aten.softplus.default": UnaryMemory("i"),
    "aten.leaky_relu.default": UnaryMemory("i"),
    "aten.hardtanh.default": UnaryMemory("i"),
    "aten.elu.default": UnaryMemory("o"),
    "aten.detach.default": UnaryMemory(passes=True),
    "aten.acos.default": UnaryMemory("i", between=5),
    "aten.acosh.default": UnaryMemory("i", between=3),
    "aten.asin.default": UnaryMemory("i", between=4),
    "aten.asinh.default": UnaryMemory("i", between=3),
    "aten.atan.default": UnaryMemory("i", between=2),
    "aten.atanh.default": UnaryMemory("i", between=3),
    "aten.ceil.default": UnaryMemory(),
    "aten.celu.default": UnaryMemory("i"),
    "aten.clamp_max.default": UnaryMemory("i", byte_masks=1),
    "aten.clamp_min.default": UnaryMemory("i", byte_masks=1),
    "aten.cosh.default": UnaryMemory("i", between=1),
    "aten.erf.default": UnaryMemory("i", between=4),
    "aten.erfc.default": UnaryMemory("i", between=4),
    "aten.erfinv.default": UnaryMemory("i", between=4),
    "aten.exp2.default": UnaryMemory("o", between=1),
    "aten.expm1.default": UnaryMemory("o", between=1),
    "aten.floor.default": UnaryMemory(),
    "aten.hardshrink.default": UnaryMemory("i"),
    "aten.hardsigmoid.default": UnaryMemory("i"),
    "aten.hardswish.default": UnaryMemory("i"),
    "aten.lgamma.default": UnaryMemory("i", between=1),
    "aten.log10.default": UnaryMemory("i", between=1),
    "aten.log1p.default": UnaryMemory("i", between=1),
    "aten.log2.default": UnaryMemory("i", between=1),
    "aten.log_sigmoid.default": UnaryMemory("ib"),
    "aten.logit.default": UnaryMemory("i"),
    "aten.mish.default": UnaryMemory("i"),
    "aten.nan_to_num.default": UnaryMemory("i", byte_masks=3),
    "aten.reciprocal.default": UnaryMemory("o", between=2),
    "aten.relu6.default": UnaryMemory("i"),
    "aten.round.default": UnaryMemory(),
    "aten.selu.default": UnaryMemory("i"),
    "aten.sign.default": UnaryMemory(),
    "aten.sinc.default": UnaryMemory("i", between=7),
    "aten.sinh.default": UnaryMemory("i", between=1),
    "aten.softshrink.default": UnaryMemory("i"),
    "aten.square.default": UnaryMemory("i", between=2),
    "aten.tan.default": UnaryMemory("o", between=2),
    "aten.threshold.default": UnaryMemory("i"),
    "aten.trunc.default": UnaryMemory(),
    "aten.frac.default": UnaryMemory(passes=True),
    "aten.pow.Scalar": UnaryMemory("io", between=1),
}
_SCALED = ("aten.mul.Tensor", "aten.div.Tensor", "aten.mul.Scalar", "aten.div.Scalar")
_SUMS = ("aten.add.Tensor", "aten.sub.Tensor", "aten.add.Scalar", "aten.sub.Scalar", "aten.rsub.Scalar")


def unary(m: MetaAutograd, x: MetaTensor, kind: UnaryMemory) -> MetaTensor:
    """Apply an op with one input to a tensor of the same shape."""
    out = m.new(x.shape, x.width, dense_strides_like(x.shape, x.strides))
    order = out.strides

    def run(grads: list[Any], _: Sequence[Any]) -> list[MetaTensor]:
        if kind.passes:
            return [grads[0]]
        between = [m.empty_like(grads[0]) for _ in range(kind.between)]
        between += [m.new(grads[0].shape, 1) for _ in range(kind.byte_masks)]
        # An expanded gradient has no memory order of its own and takes that of the saved tensor.
        strides = (
            order if kind.saves and 0 in grads[0].strides else dense_strides_like(grads[0].shape, grads[0].strides)
        )
        found = [m.new(grads[0].shape, grads[0].width, strides)]
        del between
        return found

    m.record([out], [x], [_kept(m, letter, x, out) for letter in kind.saves], run)
    return out


def _kept(m: MetaAutograd, letter: str, x: MetaTensor, out: MetaTensor) -> MetaTensor:
    return {"i": x, "o": out}.get(letter) or m.empty_like(x)


def sum_to_shape(m: MetaAutograd, gradient: MetaTensor, shape: Shape) -> MetaTensor:
    """Sum the gradient of a broadcast tensor over the broadcast dims."""
    if gradient.shape == shape:
        return gradient
    total = m.new(shape, gradient.width)
    return total.view(shape, total.strides) if len(shape) < len(gradient.shape) else total


def scalar(m: MetaAutograd, op: str, x: MetaTensor, width: int, *, keeps_input: bool = False) -> MetaTensor:
    """An op with a scalar: sums pass the gradient on, products allocate a new one; a divisor is kept."""
    out = m.new(x.shape, width, dense_strides_like(x.shape, x.strides))
    kept = [x] if keeps_input else []
    m.record([out], [x], kept, lambda grads, _: [grads[0] if op in _SUMS else m.empty_like(grads[0])])
    return out


def binary(m: MetaAutograd, op: str, one: MetaTensor, two: MetaTensor, width: int) -> MetaTensor:
    """Sums, products and quotients of two tensors with broadcasting."""
    shape = broadcast((one.shape, two.shape))
    strided = next((each for each in (one, two) if each.shape == shape), None)
    out = m.new(shape, width, dense_strides_like(shape, strided.strides) if strided is not None else None)
    shapes, flows = (one.shape, two.shape), (one.node is not None, two.node is not None)
    widths = one.width, two.width
    if op in _SUMS:
        minus = op == "aten.sub.Tensor"

        def run(grads: list[Any], _: Sequence[Any]) -> list[MetaTensor | None]:
            second = (m.empty_like(grads[0]) if minus else grads[0]) if flows[1] else None
            return _reduced(m, [grads[0] if flows[0] else None, second], shapes, widths)

        m.record([out], [one, two], [], run)
        return out
    quotient = op.startswith("aten.div.")
    kept = ([two] if flows[0] or (quotient and flows[1]) else []) + ([one] if flows[1] else [])

    def backward(grads: list[Any], _: Sequence[Any]) -> list[MetaTensor | None]:
        first = m.empty_like(grads[0]) if flows[0] else None
        second = None
        if flows[1]:
            between = [m.empty_like(grads[0]) for _ in range(3 if quotient else 0)]
            second = m.empty_like(grads[0])
            del between
        return _reduced(m, [first, second], shapes, widths)

    m.record([out], [one, two], kept, backward)
    return out


def _reduced(
    m: MetaAutograd, grads: list[MetaTensor | None], shapes: Sequence[Shape], widths: Sequence[int]
) -> list[MetaTensor | None]:
    """Reduce each gradient to the shape and width of its input, one after another."""
    for at, (shape, width) in enumerate(zip(shapes, widths, strict=True)):
        one = grads[at]
        grads[at] = None
        if one is not None:
            one = sum_to_shape(m, one, shape)
            if one.width != width:
                one = m.new(one.shape, width)
        grads[at] = one
    return grads


def where(
    m: MetaAutograd, condition: MetaTensor, one: MetaTensor | None, two: MetaTensor | None, width: int
) -> MetaTensor:
    """``where`` and ``masked_fill``: each gradient is full-size, with zeros where the other input was selected."""
    tensors = [each for each in (one, two) if each is not None]
    shape = broadcast([condition.shape, *(each.shape for each in tensors)])
    out = m.new(shape, width)
    shapes = [each.shape for each in tensors]
    flows, widths = [each.node is not None for each in tensors], [each.width for each in tensors]

    def run(grads: list[Any], _: Sequence[Any]) -> list[MetaTensor | None]:
        return _reduced(m, [m.empty_like(grads[0]) if flow else None for flow in flows], shapes, widths)

    m.record([out], tensors, [condition], run)
    return out


def cast(m: MetaAutograd, x: MetaTensor, width: int) -> MetaTensor:
    """A copy in another dtype; its gradient has the old dtype."""
    out, before = m.new(x.shape, width, dense_strides_like(x.shape, x.strides)), x.width
    m.record([out], [x], [], lambda grads, _: [m.new(grads[0].shape, before)])
    return out


def clone(m: MetaAutograd, x: MetaTensor) -> MetaTensor:
    """``clone``: passes the gradient on."""
    out = m.new(x.shape, x.width, dense_strides_like(x.shape, x.strides))
    m.record([out], [x], [], lambda grads, _: [grads[0]])
    return out


def dropped(m: MetaAutograd, x: MetaTensor) -> MetaTensor:
    """Dropout in training: a CPU saves the noise that multiplied the input, a GPU a byte mask."""
    noise = m.new(x.shape, x.width if m.device == "cpu" else 1)
    out = m.empty_like(x)
    m.record([out], [x], [noise], lambda grads, _: [m.empty_like(grads[0])])
    return out
