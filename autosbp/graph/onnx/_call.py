"""What a value of an ONNX graph is while the graph is run, and a call of one op.

Most values are torch tensors. Shapes, and what is computed of them and of small constants, are numpy arrays ("host" values):
they hold Python integers where a size depends on the batch, which torch traces, and plain numbers else.
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

Host = np.ndarray[Any, Any]
Value = torch.Tensor | Host
MAX_HOST_ELEMENTS = 4096
"""Of a host value; larger ones are tensors."""


@dataclass(frozen=True, slots=True)
class Call:
    """One op with its operands; a missing one is None.

    Args:
        where: the op's place in the file, for errors.
        op: its name.
        operands: values, in order.
        attributes: of the op.
        num_outputs: that somebody may read.
    """

    where: str
    op: str
    operands: Sequence[Value | None]
    attributes: Mapping[str, Attribute]
    num_outputs: int

    def refused(self, what: str, value: object, limit: str) -> InputError:
        """An error that names the op and what is wrong with it."""
        return InputError(f"{self.where}.{what}", value, f"{self.op}: {limit}")

    def value(self, at: int) -> Value | None:
        """An operand that may be missing."""
        return self.operands[at] if at < len(self.operands) else None

    def needed(self, at: int) -> Value:
        """An operand that must be there."""
        found = self.value(at)
        if found is None:
            raise self.refused(f"input[{at}]", None, "this operand is required")
        return found

    def tensor(self, at: int) -> torch.Tensor:
        """An operand as a tensor."""
        return as_tensor(self.needed(at))

    def maybe(self, at: int) -> torch.Tensor | None:
        """An operand as a tensor, or None."""
        found = self.value(at)
        return None if found is None else as_tensor(found)

    def host(self, at: int) -> Host | None:
        """An operand whose values are known, or None where there is none."""
        found = self.value(at)
        if isinstance(found, torch.Tensor):
            raise self.refused(f"input[{at}]", "a tensor", "values that depend on data cannot be planned")
        return found

    def ints(self, at: int) -> list[Any] | None:
        """A list of integers among the operands, or None."""
        found = self.host(at)
        return None if found is None else [one if _is_symbolic(one) else int(one) for one in found.reshape(-1)]

    def listed(self, name: str, at: int | None = None) -> list[Any] | None:
        """Integers that are an attribute or, in later versions of the op, the operand ``at``; None where they are missing."""
        given = self.ints(at) if at is not None else None
        found = self.attributes.get(name)
        return given if given is not None else [int(one) for one in found] if isinstance(found, tuple) else None

    def integer(self, name: str, default: int) -> int:
        """An attribute."""
        found = self.attributes.get(name, default)
        if not isinstance(found, int):
            raise self.refused(name, found, "an integer is expected")
        return found

    def number(self, name: str, default: float) -> float:
        """An attribute."""
        found = self.attributes.get(name, default)
        if not isinstance(found, (int, float)):
            raise self.refused(name, found, "a number is expected")
        return float(found)

    def text(self, name: str, default: str, choices: Sequence[str]) -> str:
        """An attribute that is one of these."""
        found = self.attributes.get(name, default)
        if not isinstance(found, str) or found not in choices:
            raise self.refused(name, found, f"one of {', '.join(choices)} is expected")
        return found

    def scalar(self, at: int, default: Any = None) -> Any:
        """An operand of one known element as a Python number, or the default."""
        found = self.host(at)
        if found is None:
            return default
        if found.size != 1:
            raise self.refused(f"input[{at}]", list(found.shape), "one element is expected")
        return found.reshape(-1)[0].item() if found.dtype != object else found.reshape(-1)[0]

    def axis(self, ndim: int, default: int) -> int:
        """The attribute ``axis`` of a tensor of so many dims, counted from the first."""
        return self.dim(self.integer("axis", default), ndim)

    def dim(self, at: int, ndim: int) -> int:
        """A dim counted from either end, from the first."""
        if not -ndim <= at < max(ndim, 1):
            raise self.refused("axis", at, f"a dim of {ndim} is expected")
        return at % max(ndim, 1)


def is_host(value: object) -> bool:
    """Whether the values are known when the graph is captured."""
    return isinstance(value, np.ndarray)


def as_tensor(value: Value) -> torch.Tensor:
    """A value as a tensor."""
    if isinstance(value, torch.Tensor):
        return value
    if value.dtype == object:
        parts = [torch.full((), one, dtype=torch.int64) for one in value.reshape(-1)]
        return torch.stack(parts).reshape(value.shape) if parts else torch.empty(value.shape, dtype=torch.int64)
    return torch.tensor(value.tolist(), dtype=_TORCH[str(value.dtype)]).reshape(value.shape)


def plain(value: Host) -> Host:
    """A host value whose members are all plain integers as an array of these."""
    if value.dtype == object and not any(_is_symbolic(one) for one in value.reshape(-1)):
        return value.astype(np.int64)
    return value


def host_of(values: Sequence[Any]) -> Host:
    """A list of sizes."""
    found = np.empty(len(values), dtype=object)
    found[:] = values
    return plain(found)


def fits(*values: Host) -> bool:
    """Whether an op of host values gives one that is small enough."""
    sizes = sorted(max(value.size, 1) for value in values)
    return prod(sizes[-2:]) <= MAX_HOST_ELEMENTS * 64 and max(sizes, default=0) <= MAX_HOST_ELEMENTS


def _is_symbolic(one: object) -> bool:
    return isinstance(one, (torch.SymInt, torch.SymBool, torch.SymFloat))


_TORCH = {
    "float64": torch.float64, "float32": torch.float32, "float16": torch.float16, "int64": torch.int64, "int32": torch.int32,
    "int16": torch.int16, "int8": torch.int8, "uint8": torch.uint8, "bool": torch.bool,
}  # fmt: skip
