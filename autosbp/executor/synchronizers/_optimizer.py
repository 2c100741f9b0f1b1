"""The optimizer of a rank some of whose parameters are stepped by parameter servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from autosbp.executor.synchronizers._message_kernels import MessageKernels
from autosbp.executor.synchronizers._parameter_server import ParameterServerKernel


class SynchronizedOptimizer:
    """Steps the rank's own parameters beside the servers' steps, then takes the servers' values.

    Args:
        own: optimizer of the parameters without a server.
        programs: kernels of the rank's programs.
    """

    def __init__(self, own: Any, programs: Sequence[MessageKernels]) -> None:
        self.own, self.programs = own, programs

    @property
    def state(self) -> Mapping[torch.Tensor, Any]:
        """State by parameter, with that of the shards that this rank serves."""
        servers = [
            server.optimizer
            for program in self.programs
            for _, kernel in program.served
            if isinstance(kernel, ParameterServerKernel)
            for server in kernel.servers.values()
        ]
        return {key: value for optimizer in (self.own, *servers) for key, value in optimizer.state.items()}

    def zero_grad(self, *, set_to_none: bool = True) -> None:
        """Remove or zero the gradients of the rank's own parameters."""
        self.own.zero_grad(set_to_none=set_to_none)

    def step(self) -> None:
        """One step of all parameters."""
        for program in self.programs:
            program.update()
        self.own.step()
        for program in self.programs:
            program.install()
