"""Optimizer of a rank if parameter servers update some of its parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from autosbp.executor.synchronizers._message_kernels import MessageKernels
from autosbp.executor.synchronizers._parameter_server import ParameterServerKernel


class SynchronizedOptimizer:
    """Steps the rank's own parameters while servers update theirs, then installs the servers' new values.

    Args:
        own: optimizer of the parameters without a server.
        programs: kernels of each of the rank's programs.
    """

    def __init__(self, own: Any, programs: Sequence[MessageKernels]) -> None:
        self.own, self.programs = own, programs

    @property
    def state(self) -> Mapping[torch.Tensor, Any]:
        """Optimizer state by parameter, including the shards for which this rank is the server."""
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
        """Update all parameters once."""
        for program in self.programs:
            program.update()
        self.own.step()
        for program in self.programs:
            program.install()
