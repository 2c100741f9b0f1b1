"""Optimizer state of parameters that are stored shorter than float32: a float32 copy that the optimizer works on, and
float32 moments (Micikevicius et al. 2018), as ``costmodel.optimizer`` and ``costmodel.memory.state`` charge it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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

    A gradient is float32 only while its parameter's step runs. Parameters step together while their gradients take no more
    than the largest one's: a step of each alone takes the host longer than a GPU.
    """

    def __init__(self, make: Callable[[list[torch.Tensor]], Any], parameters: Iterable[torch.Tensor]) -> None:
        self.parameters = list(parameters)
        long = [parameter for parameter in self.parameters if not is_short(parameter)]
        self._rest = make(long) if long else None
        self._short = []
        for group in _together([each for each in self.parameters if is_short(each)]):
            copies = [each.detach().float().requires_grad_() for each in group]
            self._short.append((group, copies, make(copies)))

    @property
    def state(self) -> Mapping[torch.Tensor, Mapping[str, Any]]:
        """By parameter, the float32 copy among it."""
        found = dict(self._rest.state) if self._rest is not None else {}
        return found | {
            parameter: {**optimizer.state.get(copy, {}), "copy": copy}
            for parameters, copies, optimizer in self._short
            for parameter, copy in zip(parameters, copies, strict=True)
        }

    def zero_grad(self, *, set_to_none: bool = True) -> None:
        """Forget the gradients."""
        forget_gradients(self.parameters, set_to_none=set_to_none)

    @torch.no_grad()
    def step(self) -> None:
        """One step of all parameters that have a gradient."""
        if self._rest is not None:
            self._rest.step()
        for parameters, copies, optimizer in self._short:
            stepped, results = [], []
            for parameter, copy in zip(parameters, copies, strict=True):
                if parameter.grad is not None:
                    copy.grad = parameter.grad.float()
                    stepped.append(parameter)
                    results.append(copy)
            if not stepped:
                continue
            optimizer.step()
            for copy in results:
                copy.grad = None
            torch._foreach_copy_(stepped, results)


def _together(parameters: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Groups, in order, none of which has more elements than the largest parameter."""
    largest = max((each.numel() for each in parameters), default=0)
    groups: list[list[torch.Tensor]] = []
    left = 0
    for each in parameters:
        if not groups or each.numel() > left:
            groups.append([])
            left = largest
        groups[-1].append(each)
        left -= each.numel()
    return groups
