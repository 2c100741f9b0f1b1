"""Stand-ins for tracing a module: fake tensors, and a ``len`` that keeps the batch symbolic."""

from __future__ import annotations

import builtins
import copy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv


class FakeTensors:
    """Fake CPU tensors without data, so that any op between them can be traced."""

    def __init__(self) -> None:
        self.mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())

    def tensor(self, like: torch.Tensor) -> torch.Tensor:
        with self.mode:
            return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device="cpu")

    def module(self, module: torch.nn.Module) -> torch.nn.Module:
        """Copy a module with a fake tensor for each parameter, buffer and tensor attribute; no value is copied."""
        memo: dict[int, Any] = {}
        for part in module.modules():
            for tensor in (*part._parameters.values(), *part._buffers.values(), *vars(part).values()):
                if isinstance(tensor, torch.nn.Parameter):
                    memo[id(tensor)] = torch.nn.Parameter(self.tensor(tensor), requires_grad=tensor.requires_grad)
                elif isinstance(tensor, torch.Tensor):
                    memo[id(tensor)] = self.tensor(tensor)
        return copy.deepcopy(module, memo)


@contextmanager
def symbolic_len(module: torch.nn.Module) -> Iterator[None]:
    """While active, ``len(tensor)`` in the source files of the module's classes returns the symbolic ``shape[0]``.

    Python's own ``len`` converts it to an int, so that the graph would be valid for one batch size only.
    """
    names = {type(part).__module__ for part in module.modules()}
    files = [vars(sys.modules[name]) for name in sorted(names) if not name.startswith("torch.") and name in sys.modules]
    patched = [space for space in files if "len" not in space]
    for space in patched:
        space["len"] = _len
    try:
        yield
    finally:
        for space in patched:
            del space["len"]


def _len(value: Any) -> Any:
    return value.shape[0] if isinstance(value, torch.Tensor) and value.dim() else builtins.len(value)
