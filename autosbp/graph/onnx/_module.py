"""An ONNX model as a torch module that runs its ops in order; weights are on the meta device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from autosbp.errors import AutosbpError, InputError
from autosbp.graph.onnx._call import (
    MAX_HOST_ELEMENTS,
    HostValue,
    OnnxCall,
    Value,
    as_tensor,
    is_host,
    is_small,
    to_int_array,
)
from autosbp.graph.onnx._data_movement import MOVES
from autosbp.graph.onnx._layers import LAYERS
from autosbp.graph.onnx._pointwise import POINTWISE, Op
from autosbp.graph.onnx._shapes import HOST_OPS
from autosbp.graph.onnx._skeleton import OnnxNode, OnnxTensor, Skeleton
from autosbp.graph.to_fx import torch_dtype

OPS: Mapping[str, Op] = {**POINTWISE, **LAYERS, **MOVES}
FIRST_OUTPUT, CROSS_ENTROPY, SQUARED_DIFFERENCE = "given", "cross entropy", "squared difference"
_FIRST_IGNORED_OPERAND = {"BatchNormalization": 3, "Dropout": 3}
"""Index of the first operand that training ignores."""
_LAYERS = frozenset((
    "Conv", "ConvTranspose", "Gemm", "BatchNormalization", "GroupNormalization", "InstanceNormalization",
    "LayerNormalization", "RMSNormalization", "PRelu",
))  # fmt: skip
"""Ops whose operands are weights even if they have one element."""
_FIELDS = ("value", "value_float", "value_int", "value_floats", "value_ints")


class OnnxModule(torch.nn.Module):
    """Runs the nodes of a skeleton.

    Inputs are called ``x0``, ``x1`` and so on; the labels or target of an added loss come last. Parameters are called
    ``p0``, ``p1`` and so on; ``sources`` maps each to its tensor in the file.
    """

    def __init__(self, skeleton: Skeleton) -> None:
        super().__init__()
        self.skeleton, self.loss = skeleton, FIRST_OUTPUT
        self.sources: dict[str, OnnxTensor] = {}
        self.known: dict[str, HostValue] = {}
        self.stored: dict[str, str] = {}
        self.nodes = tuple(node for node in skeleton.nodes if node.op != "Constant")
        read = {name for node in self.nodes for name in node.inputs[: _FIRST_IGNORED_OPERAND.get(node.op)]} | {
            *skeleton.outputs
        }
        self.nodes = tuple(
            replace(node, outputs=tuple(name if name in read else "" for name in node.outputs)) for node in self.nodes
        )
        of_layers = {
            name
            for node in self.nodes
            if node.op in _LAYERS
            for name in node.inputs[1 : _FIRST_IGNORED_OPERAND.get(node.op)]
        }
        for tensor in skeleton.tensors:
            if tensor.name not in read:
                continue
            if tensor.data is None or (tensor.is_single and tensor.name in of_layers):
                self._weight(tensor)
            else:
                self._constant(tensor.name, tensor.values(), tensor.dtype)
        for at, node in enumerate(skeleton.nodes):
            if node.op == "Constant" and node.outputs:
                self._constant(node.outputs[0], _constant_of(node, at))

    def _weight(self, tensor: OnnxTensor) -> None:
        name = f"p{len(self.sources)}"
        empty = torch.empty(tensor.shape, dtype=torch_dtype(tensor.dtype), device="meta")
        self.register_parameter(name, torch.nn.Parameter(empty))
        self.sources[name] = tensor
        self.stored[tensor.name] = name

    def _constant(self, name: str, values: HostValue, dtype: str | None = None) -> None:
        if values.size <= MAX_HOST_ELEMENTS and dtype != "bfloat16":
            self.known[name] = values
            return
        here = f"c{len(self._buffers)}"
        tensor = torch.from_numpy(values.copy())
        self.register_buffer(here, tensor.to(torch_dtype(dtype)) if dtype else tensor)
        self.stored[name] = here

    def outputs(self, *inputs: torch.Tensor) -> list[Value]:
        """The model's outputs."""
        values: dict[str, Value] = {**self.known, **{name: getattr(self, here) for name, here in self.stored.items()}}
        values |= {one.name: tensor for one, tensor in zip(self.skeleton.inputs, inputs, strict=False)}
        for at, node in enumerate(self.nodes):
            found = _run(node, f"model.graph.node[{at}]", values)
            values |= {name: value for name, value in zip(node.outputs, found, strict=False) if name}
        missing = [name for name in self.skeleton.outputs if name not in values]
        if missing:
            raise InputError("model.graph.output", missing[0], "expected the output of a node")
        return [values[name] for name in self.skeleton.outputs]

    def forward(
        self,
        x0: torch.Tensor,
        x1: Any = None, x2: Any = None, x3: Any = None, x4: Any = None, x5: Any = None, x6: Any = None, x7: Any = None,
        x8: Any = None, x9: Any = None, x10: Any = None, x11: Any = None, x12: Any = None, x13: Any = None,
        x14: Any = None, x15: Any = None,
    ) -> torch.Tensor:  # fmt: skip
        """The loss."""
        given = (x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, x12, x13, x14, x15)
        inputs = [one for one in given if one is not None]
        found = as_tensor(self.outputs(*inputs)[0])
        if self.loss == CROSS_ENTROPY:
            return F.cross_entropy(found.flatten(0, -2), inputs[-1].flatten())
        return F.mse_loss(found, inputs[-1]) if self.loss == SQUARED_DIFFERENCE else found


def _constant_of(node: OnnxNode, at: int) -> HostValue:
    for field in _FIELDS:
        value = node.attributes.get(field)
        if value is not None and not isinstance(value, str):
            whole = "int" in field
            return value if isinstance(value, np.ndarray) else np.asarray(value, np.int64 if whole else np.float32)
    raise InputError(f"model.graph.node[{at}].attribute", [*node.attributes], f"expected one of {', '.join(_FIELDS)}")


def _run(node: OnnxNode, where: str, values: Mapping[str, Value]) -> tuple[Value, ...]:
    operands: list[Value | None] = []
    for at, name in enumerate(node.inputs):
        wanted = name and at < _FIRST_IGNORED_OPERAND.get(node.op, at + 1)
        if wanted and name not in values:
            raise InputError(
                f"{where}.input[{at}]", name, f"{node.op}: expected an earlier value, input or initializer"
            )
        operands.append(values[name] if wanted else None)
    call = OnnxCall(where, node.op, operands, node.attributes, sum(1 for name in node.outputs if name))
    try:
        found = _evaluate_on_host(call)
        found = OPS[node.op](call) if found is None else found
    except (AutosbpError, MemoryError):
        raise
    except Exception as error:  # torch and numpy check operands with errors of many types
        shapes = ", ".join("none" if one is None else f"{list(one.shape)}" for one in operands)
        reason = " ".join(str(error).split())[:300]
        raise InputError(where, f"{node.op} of {shapes}", f"incompatible operands ({reason})") from error
    parts = found if isinstance(found, (tuple, list)) else (found,)
    return tuple(_normalized_value(part) for part in parts)


def _evaluate_on_host(call: OnnxCall) -> Any:
    """The op's result if all its operands are known host values; None if it has to run on tensors."""
    operands = [one for one in call.operands if isinstance(one, np.ndarray)]
    if call.op not in HOST_OPS or not operands or len(operands) < len(call.operands) or not is_small(*operands):
        return None
    return HOST_OPS[call.op](call, operands)


def _normalized_value(value: Value) -> Value:
    if not isinstance(value, np.ndarray):
        return value
    value = to_int_array(value)
    return value if value.size <= MAX_HOST_ELEMENTS or not is_host(value) else as_tensor(value)
