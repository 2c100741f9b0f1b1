"""Values of an ONNX graph during its capture, and a call of one op.

Most values are torch tensors. Shapes, and small results computed from them and from constants, are numpy arrays ("host"
values): they hold torch's symbolic integers for sizes that depend on the batch, and plain numbers otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch

from autosbp.errors import InputError
from autosbp.graph.onnx._skeleton import Attribute

HostValue = np.ndarray[Any, Any]
Value = torch.Tensor | HostValue
MAX_HOST_ELEMENTS = 4096
"""Largest host value, in elements; larger ones are tensors."""


@dataclass(frozen=True, slots=True)
class OnnxCall:
    """One op with its operands; a missing operand is None.

    Args:
        where: the op's location in the file, for errors.
        op: its name.
        operands: values, in order.
        attributes: attributes of the op.
        num_outputs: number of outputs that other ops may read.
    """

    where: str
    op: str
    operands: Sequence[Value | None]
    attributes: Mapping[str, Attribute]
    num_outputs: int

    def refused(self, what: str, value: object, limit: str) -> InputError:
        """An error that names the op and its invalid operand or attribute."""
        return InputError(f"{self.where}.{what}", value, f"{self.op}: {limit}")

    def value(self, at: int) -> Value | None:
        """Operand ``at``, or None if it is missing."""
        return self.operands[at] if at < len(self.operands) else None

    def needed(self, at: int) -> Value:
        """Operand ``at``; raise ``InputError`` if it is missing."""
        found = self.value(at)
        if found is None:
            raise self.refused(f"input[{at}]", None, "required operand is missing")
        return found

    def tensor(self, at: int) -> torch.Tensor:
        """Operand ``at`` as a tensor; raise ``InputError`` if it is missing."""
        return as_tensor(self.needed(at))

    def optional_tensor(self, at: int) -> torch.Tensor | None:
        """Operand ``at`` as a tensor, or None if it is missing."""
        found = self.value(at)
        return None if found is None else as_tensor(found)

    def host(self, at: int) -> HostValue | None:
        """Operand ``at`` as a host value, or None if it is missing; raise ``InputError`` for a tensor."""
        found = self.value(at)
        if isinstance(found, torch.Tensor):
            raise self.refused(
                f"input[{at}]", "a tensor", ("expected a constant; values that depend on data cannot be planned")
            )
        return found

    def ints(self, at: int) -> list[Any] | None:
        """Operand ``at`` as a list of integers, or None if it is missing."""
        found = self.host(at)
        return None if found is None else [one if _is_symbolic(one) else int(one) for one in found.reshape(-1)]

    def listed(self, name: str, at: int | None = None) -> list[Any] | None:
        """Integers given as an attribute or, in later versions of the op, as operand ``at``; None if missing."""
        given = self.ints(at) if at is not None else None
        found = self.attributes.get(name)
        return given if given is not None else [int(one) for one in found] if isinstance(found, tuple) else None

    def integer(self, name: str, default: int) -> int:
        """The value of an integer attribute."""
        found = self.attributes.get(name, default)
        if not isinstance(found, int):
            raise self.refused(name, found, "expected an integer")
        return found

    def number(self, name: str, default: float) -> float:
        """The value of a float attribute."""
        found = self.attributes.get(name, default)
        if not isinstance(found, (int, float)):
            raise self.refused(name, found, "expected a number")
        return float(found)

    def text(self, name: str, default: str, choices: Sequence[str]) -> str:
        """The value of a text attribute, one of ``choices``."""
        found = self.attributes.get(name, default)
        if not isinstance(found, str) or found not in choices:
            raise self.refused(name, found, f"expected one of {', '.join(choices)}")
        return found

    def scalar(self, at: int, default: Any = None) -> Any:
        """An operand with one known element, as a Python number; ``default`` if missing."""
        found = self.host(at)
        if found is None:
            return default
        if found.size != 1:
            raise self.refused(f"input[{at}]", list(found.shape), "expected one element")
        return found.reshape(-1)[0].item() if found.dtype != object else found.reshape(-1)[0]

    def axis(self, ndim: int, default: int) -> int:
        """The attribute ``axis`` as a non-negative dim of a tensor with ``ndim`` dims."""
        return self.dim(self.integer("axis", default), ndim)

    def dim(self, at: int, ndim: int) -> int:
        """A possibly negative dim as a non-negative one."""
        if not -ndim <= at < max(ndim, 1):
            raise self.refused("axis", at, f"expected a dim of {ndim}")
        return at % max(ndim, 1)


def is_host(value: object) -> bool:
    """Whether the values are known when the graph is captured."""
    return isinstance(value, np.ndarray)


def as_tensor(value: Value) -> torch.Tensor:
    """Convert a value to a tensor."""
    if isinstance(value, torch.Tensor):
        return value
    if value.dtype == object:
        parts = [torch.full((), one, dtype=torch.int64) for one in value.reshape(-1)]
        return torch.stack(parts).reshape(value.shape) if parts else torch.empty(value.shape, dtype=torch.int64)
    return torch.tensor(value.tolist(), dtype=_TORCH[str(value.dtype)]).reshape(value.shape)


def to_int_array(value: HostValue) -> HostValue:
    """Convert a host value without symbolic members to an integer array."""
    if value.dtype == object and not any(_is_symbolic(one) for one in value.reshape(-1)):
        return value.astype(np.int64)
    return value


def host_from_sizes(values: Sequence[Any]) -> HostValue:
    """A host value of a list of sizes."""
    found = np.empty(len(values), dtype=object)
    found[:] = values
    return to_int_array(found)


def is_small(*values: HostValue) -> bool:
    """Whether the result of an op on these host values is small enough to be a host value."""
    sizes = sorted(max(value.size, 1) for value in values)
    return prod(sizes[-2:]) <= MAX_HOST_ELEMENTS * 64 and max(sizes, default=0) <= MAX_HOST_ELEMENTS


def _is_symbolic(one: object) -> bool:
    return isinstance(one, (torch.SymInt, torch.SymBool, torch.SymFloat))


_TORCH = {
    "float64": torch.float64, "float32": torch.float32, "float16": torch.float16, "int64": torch.int64, "int32": torch.int32,
    "int16": torch.int16, "int8": torch.int8, "uint8": torch.uint8, "bool": torch.bool,
}  # fmt: skip
