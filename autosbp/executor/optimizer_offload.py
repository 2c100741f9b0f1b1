"""Optimizer offload: state and a parameter copy on the host; gradients go to it, parameters come back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from autosbp.executor.master_weights import clear_gradients
from autosbp.executor.parameter_shards import gradient_dtype


class HostOptimizer:
    """Steps the optimizer that ``make`` creates, on the host. The device holds none of its state.

    Args:
        make: makes an optimizer over host tensors.
        parameters: on the device; a step skips those without a gradient.
    """

    def __init__(self, make: Callable[[list[torch.Tensor]], Any], parameters: Iterable[torch.Tensor]) -> None:
        self.parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self.copies = [self._room(each, each.dtype).copy_(each.detach()).requires_grad_() for each in self.parameters]
        self._gradients = [self._room(each, gradient_dtype(each)) for each in self.parameters]
        for copy, gradient in zip(self.copies, self._gradients, strict=True):
            copy.grad_dtype = gradient.dtype
        self.optimizer = make(self.copies)

    @property
    def state(self) -> Mapping[torch.Tensor, Mapping[str, Any]]:
        """State on the device: none."""
        return {}

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The parameters on the device, as a gradient scaler looks for them."""
        return [{"params": self.parameters}]

    def zero_grad(self, *, set_to_none: bool = True) -> None:
        """Remove or zero the device's gradients."""
        clear_gradients(self.parameters, set_to_none=set_to_none)

    @torch.no_grad()
    def step(self) -> None:
        """Copy gradients to the host, step, and copy parameters back.

        The copies back may still run when this returns: later GPU work is ordered after them, and the next step
        synchronises.
        """
        for parameter, copy, gradient in zip(self.parameters, self.copies, self._gradients, strict=True):
            copy.grad = None if parameter.grad is None else gradient.copy_(parameter.grad, non_blocking=True)
        for device in {parameter.device for parameter in self.parameters if parameter.device.type == "cuda"}:
            torch.cuda.current_stream(device).synchronize()
        self.optimizer.step()
        for parameter, copy in zip(self.parameters, self.copies, strict=True):
            if copy.grad is not None:
                parameter.copy_(copy, non_blocking=True)

    @staticmethod
    def _room(parameter: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Memory on the host for a parameter's values, pinned if the parameter is on a GPU."""
        return torch.empty(parameter.shape, dtype=dtype, pin_memory=parameter.device.type == "cuda")
