"""ONNX element-wise ops, implemented in torch."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from autosbp.graph.onnx._call import OnnxCall, Value, as_tensor

Op = Callable[[OnnxCall], Any]


def _unary(function: Callable[[torch.Tensor], torch.Tensor]) -> Op:
    return lambda call: function(call.tensor(0))


def _number_or_tensor(value: Value, other: Value) -> Any:
    """A known number as a Python number, if that does not change the result's shape."""
    if isinstance(value, torch.Tensor) or not isinstance(other, torch.Tensor):
        return value if isinstance(value, torch.Tensor) else as_tensor(value)
    if value.size == 1 and value.ndim <= other.dim():
        one = value.reshape(-1)[0]
        return one if value.dtype == object else one.item()
    return as_tensor(value)


def _binary(function: Callable[[Any, Any], Any]) -> Op:
    def run(call: OnnxCall) -> Any:
        one, two = call.needed(0), call.needed(1)
        return function(_number_or_tensor(one, two), _number_or_tensor(two, one))

    return run


def _logical(function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Op:
    return lambda call: function(call.tensor(0), call.tensor(1))


def _variadic(function: Callable[[Any, Any], Any]) -> Op:
    def run(call: OnnxCall) -> Any:
        found = reduce(function, (call.tensor(at) for at in range(len(call.operands))))
        return found

    return run


def _mean(call: OnnxCall) -> Any:
    return _variadic(operator.add)(call) / len(call.operands)


def _divide(one: Any, two: Any) -> Any:
    if any(isinstance(each, torch.Tensor) and each.is_floating_point() for each in (one, two)):
        return one / two
    return torch.div(one, two, rounding_mode="trunc")


def _power(one: Any, two: Any) -> Any:
    return torch.pow(one, two)


def _modulo(call: OnnxCall) -> Any:
    function: Any = torch.fmod if call.integer("fmod", 0) else torch.remainder
    return _binary(function)(call)


def _where(call: OnnxCall) -> Any:
    one, two = call.needed(1), call.needed(2)
    condition = call.tensor(0)
    return torch.where(condition, _number_or_tensor(one, two), _number_or_tensor(two, one))


def _clip(call: OnnxCall) -> Any:
    return torch.clamp(call.tensor(0), call.scalar(1), call.scalar(2))


def _gelu(call: OnnxCall) -> Any:
    return F.gelu(call.tensor(0), approximate=call.text("approximate", "none", ("none", "tanh")))


def _hard_sigmoid(call: OnnxCall) -> Any:
    alpha, beta = call.number("alpha", 0.2), call.number("beta", 0.5)
    return torch.clamp(call.tensor(0) * alpha + beta, 0.0, 1.0)


def _celu(call: OnnxCall) -> Any:
    return F.celu(call.tensor(0), call.number("alpha", 1.0))


def _dropout(call: OnnxCall) -> Any:
    if call.num_outputs > 1:
        raise call.refused("output[1]", call.num_outputs, "the mask output is not supported")
    source, training = call.tensor(0), bool(call.scalar(2, False))
    return F.dropout(source, float(call.scalar(1, 0.5)), True) if training else source


POINTWISE: Mapping[str, Op] = {
    **{
        name: _unary(getattr(torch, name.lower()))
        for name in (
            *("Abs", "Neg", "Sqrt", "Exp", "Log", "Erf", "Tanh", "Sigmoid", "Relu", "Sin", "Cos", "Tan", "Floor"),
            *("Ceil", "Round", "Reciprocal", "Sign", "Asin", "Acos", "Atan", "Sinh", "Cosh", "IsNaN", "IsInf"),
        )
    },
    "Softplus": _unary(F.softplus),
    "Softsign": _unary(F.softsign),
    "HardSwish": _unary(F.hardswish),
    "Mish": _unary(F.mish),
    "Not": _unary(torch.logical_not),
    "Identity": _unary(lambda one: one),
    "Gelu": _gelu,
    "HardSigmoid": _hard_sigmoid,
    "Celu": _celu,
    "LeakyRelu": lambda call: F.leaky_relu(call.tensor(0), call.number("alpha", 0.01)),
    "Elu": lambda call: F.elu(call.tensor(0), call.number("alpha", 1.0)),
    "PRelu": lambda call: torch.where(call.tensor(0) >= 0, call.tensor(0), call.tensor(0) * call.tensor(1)),
    "Clip": _clip,
    "Dropout": _dropout,
    "Add": _binary(operator.add),
    "Sub": _binary(operator.sub),
    "Mul": _binary(operator.mul),
    "Div": _binary(_divide),
    "Pow": _binary(_power),
    "Mod": _modulo,
    "Equal": _binary(operator.eq),
    "Less": _binary(operator.lt),
    "Greater": _binary(operator.gt),
    "LessOrEqual": _binary(operator.le),
    "GreaterOrEqual": _binary(operator.ge),
    "And": _logical(torch.logical_and),
    "Or": _logical(torch.logical_or),
    "Xor": _logical(torch.logical_xor),
    "Max": _variadic(torch.maximum),
    "Min": _variadic(torch.minimum),
    "Sum": _variadic(operator.add),
    "Mean": _mean,
    "Where": _where,
}
