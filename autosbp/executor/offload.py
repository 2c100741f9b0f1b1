"""An optimizer on the host: its state and a copy of the parameters are there, gradients go down and parameters come up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from autosbp.executor.full_precision import forget_gradients


class HostOptimizer:
    """Steps like the optimizer that ``make`` makes of the parameters, on the host. Nothing of it is on the device.

    Args:
        make: an optimizer over host tensors.
        parameters: on the device; those without a gradient are left as they are.
    """

    def __init__(self, make: Callable[[list[torch.Tensor]], Any], parameters: Iterable[torch.Tensor]) -> None:
        self.parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self.copies = [self._copy(parameter).requires_grad_() for parameter in self.parameters]
        self._gradients = [self._copy(parameter) for parameter in self.parameters]
        self.optimizer = make(self.copies)

    @property
    def state(self) -> Mapping[torch.Tensor, Mapping[str, Any]]:
        """On the device: nothing."""
        return {}

    def zero_grad(self, *, set_to_none: bool = True) -> None:
        """Forget the device's gradients."""
        forget_gradients(self.parameters, set_to_none=set_to_none)

    @torch.no_grad()
    def step(self) -> None:
        """Gradients down, one step, parameters up. What goes up need not be there when this returns: a GPU goes on behind it,
        and the next step waits for it with its gradients."""
        for parameter, copy, gradient in zip(self.parameters, self.copies, self._gradients, strict=True):
            copy.grad = None if parameter.grad is None else gradient.copy_(parameter.grad, non_blocking=True)
        for device in {parameter.device for parameter in self.parameters if parameter.device.type == "cuda"}:
            torch.cuda.current_stream(device).synchronize()
        self.optimizer.step()
        for parameter, copy in zip(self.parameters, self.copies, strict=True):
            if copy.grad is not None:
                parameter.copy_(copy, non_blocking=True)

    @staticmethod
    def _copy(parameter: torch.Tensor) -> torch.Tensor:
        """Pinned where a GPU copies from it."""
        host = torch.empty(parameter.shape, dtype=parameter.dtype, pin_memory=parameter.device.type == "cuda")
        return host.copy_(parameter.detach())
