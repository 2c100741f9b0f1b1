"""Optimizer state of parameters that are stored shorter than float32: a float32 copy that the optimizer works on, and
float32 moments (Micikevicius et al. 2018), as ``costmodel.optimizer`` and ``costmodel.memory.state`` charge it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch


def is_short(tensor: torch.Tensor) -> bool:
    """Whether the optimizer works on a float32 copy."""
    return tensor.dtype in (torch.bfloat16, torch.float16)


def forget_gradients(parameters: Iterable[torch.Tensor], *, set_to_none: bool) -> None:
    """As ``torch.optim.Optimizer.zero_grad``: gradients go, or become zeros."""
    for parameter in parameters:
        if set_to_none or parameter.grad is None:
            parameter.grad = None
        else:
            parameter.grad.zero_()


class FullPrecision:
    """Steps like the optimizer that ``make`` makes, with short parameters as float32 copies, which are rounded back.

    Args:
        make: an optimizer over tensors of one device.
        parameters: those that are trained; one without a gradient is left as it is.

    A gradient is float32 only while its parameter's step runs, so no more than one is there at a time.
    """

    def __init__(self, make: Callable[[list[torch.Tensor]], Any], parameters: Iterable[torch.Tensor]) -> None:
        self.parameters = list(parameters)
        long = [parameter for parameter in self.parameters if not is_short(parameter)]
        self._rest = make(long) if long else None
        copies = [(each, each.detach().float().requires_grad_()) for each in self.parameters if is_short(each)]
        self._short = [(parameter, copy, make([copy])) for parameter, copy in copies]

    @property
    def state(self) -> Mapping[torch.Tensor, Mapping[str, Any]]:
        """By parameter, the float32 copy among it."""
        found = dict(self._rest.state) if self._rest is not None else {}
        return found | {
            parameter: {**optimizer.state.get(copy, {}), "copy": copy} for parameter, copy, optimizer in self._short
        }

    def zero_grad(self, *, set_to_none: bool = True) -> None:
        """Forget the gradients."""
        forget_gradients(self.parameters, set_to_none=set_to_none)

    @torch.no_grad()
    def step(self) -> None:
        """One step of all parameters that have a gradient."""
        if self._rest is not None:
            self._rest.step()
        for parameter, copy, optimizer in self._short:
            if parameter.grad is not None:
                copy.grad = parameter.grad.float()
                optimizer.step()
                copy.grad = None
                parameter.copy_(copy)
