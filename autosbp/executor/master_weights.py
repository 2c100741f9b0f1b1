"""Master weights: float32 copies and moments for parameters stored in half precision (Micikevicius et al. 2018).

``costmodel.optimizer`` and ``costmodel.memory.optimizer_state`` charge them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch


def is_half_precision(tensor: torch.Tensor) -> bool:
    """Whether the optimizer works on a float32 copy: bfloat16 and float16."""
    return tensor.dtype in (torch.bfloat16, torch.float16)


def clear_gradients(parameters: Iterable[torch.Tensor], *, set_to_none: bool) -> None:
    """Like ``torch.optim.Optimizer.zero_grad``: remove gradients, or set them to zero."""
    for parameter in parameters:
        if set_to_none or parameter.grad is None:
            parameter.grad = None
        else:
            parameter.grad.zero_()


class MasterWeights:
    """An optimizer that steps float32 copies of half-precision parameters and rounds the results back.

    Args:
        make: makes an optimizer over tensors of one device.
        parameters: the trained ones; a step skips those without a gradient.

    A gradient is float32 only during its parameter's step. Parameters step in groups whose gradients take no more
    memory than the largest parameter's: with one step per parameter, the host would take longer than a GPU.
    """

    def __init__(self, make: Callable[[list[torch.Tensor]], Any], parameters: Iterable[torch.Tensor]) -> None:
        self.parameters = list(parameters)
        long = [parameter for parameter in self.parameters if not is_half_precision(parameter)]
        self._full_precision_optimizer = make(long) if long else None
        self._half_precision_groups = []
        for group in _step_groups([each for each in self.parameters if is_half_precision(each)]):
            copies = [each.detach().float().requires_grad_() for each in group]
            self._half_precision_groups.append((group, copies, make(copies)))

    @property
    def state(self) -> Mapping[torch.Tensor, Mapping[str, Any]]:
        """Optimizer state by parameter; includes the float32 copy as ``copy``."""
        found = dict(self._full_precision_optimizer.state) if self._full_precision_optimizer is not None else {}
        return found | {
            parameter: {**optimizer.state.get(copy, {}), "copy": copy}
            for parameters, copies, optimizer in self._half_precision_groups
            for parameter, copy in zip(parameters, copies, strict=True)
        }

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The parameters, as a gradient scaler looks for them."""
        return [{"params": self.parameters}]

    def zero_grad(self, *, set_to_none: bool = True) -> None:
        """Remove or zero the gradients."""
        clear_gradients(self.parameters, set_to_none=set_to_none)

    @torch.no_grad()
    def step(self) -> None:
        """One step of all parameters that have a gradient."""
        if self._full_precision_optimizer is not None:
            self._full_precision_optimizer.step()
        for parameters, copies, optimizer in self._half_precision_groups:
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


def _step_groups(parameters: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Groups of parameters, in order, none of which has more elements than the largest parameter."""
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
