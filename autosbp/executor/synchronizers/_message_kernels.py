"""All kernels of one program's gradient messages, on the rank's communication thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future

import torch

from autosbp.executor.runtime import IssuedCollective
from autosbp.executor.synchronizers._all_reduce import AllReduceKernel
from autosbp.executor.synchronizers._base import Kernel
from autosbp.executor.synchronizers._parameter_server import MakeOptimizer, ParameterServerKernel
from autosbp.executor.synchronizers._sparse import SparseKernel
from autosbp.executor.synchronizers._thread import CommunicationThread
from autosbp.executor.synchronizers._transport import SyncGroups, Transport
from autosbp.program.gradient_messages import Message
from autosbp.program.parameter_flow import ParameterFlow
from autosbp.sbp.mesh import Mesh


class MessageKernels:
    """Kernels by bucket; those of several programs of a rank share its thread.

    Args:
        flow: the program's parameter flow.
        parameters: this rank's part of each, by name.
        mesh, rank, groups: of the stage.
        make_optimizer: of parameter servers; None if the caller steps all parameters itself.
    """

    def __init__(
        self,
        flow: ParameterFlow,
        parameters: Mapping[str, torch.Tensor],
        mesh: Mesh,
        rank: int,
        groups: SyncGroups,
        thread: CommunicationThread,
        make_optimizer: MakeOptimizer | None,
    ) -> None:
        self._thread = thread
        self.kernels: dict[int, Kernel] = {
            at: _kernel(bucket.message, parameters, Transport(mesh, rank, groups), make_optimizer)
            for at, bucket in enumerate(flow.buckets)
            if bucket.message is not None and not bucket.message.is_plain
        }
        self._reducing: dict[int, Future[None]] = {}
        self._updating: dict[int, deque[Future[None]]] = {at: deque() for at in self.kernels}

    @property
    def served(self) -> Iterator[tuple[int, Kernel]]:
        """Messages with servers that apply gradients."""
        return ((at, kernel) for at, kernel in self.kernels.items() if kernel.message.is_served)

    @property
    def served_names(self) -> frozenset[str]:
        """Parameters that servers step."""
        return frozenset(shard.name for _, kernel in self.served for shard in kernel.message.shards)

    def issue(self, at: int) -> None:
        """Reduce a message, whose gradients are complete."""
        kernel = self.kernels[at]
        kernel.fill()
        self._reducing[at] = self._thread.submit(kernel.reduce)

    def deliver(self) -> None:
        """Wait for the step's reductions, but those that may lag, and give the parameters their gradients."""
        for at, reducing in self._reducing.items():
            if not self.kernels[at].message.sync.staleness:
                reducing.result()
                self.kernels[at].deliver()
        self._reducing.clear()

    def update(self) -> None:
        """Have the servers apply the step's gradients and send new values."""
        for at, kernel in self.served:
            self._updating[at].append(self._thread.submit(kernel.update))

    def install(self) -> None:
        """Wait for the new values that are due, and give them to the parameters."""
        for at, kernel in self.served:
            versions = self._updating[at]
            if len(versions) > kernel.message.sync.staleness:
                versions.popleft().result()
                kernel.install()

    def take_issued(self) -> tuple[list[IssuedCollective], list[IssuedCollective]]:
        """Reductions and updates since the last call, once the thread has done all its work."""
        self._thread.drain()
        reductions, updates = list[IssuedCollective](), list[IssuedCollective]()
        for kernel in self.kernels.values():
            done, kernel.transport.issued = kernel.transport.issued, []
            served = kernel.message.is_served
            reductions += (call for call in done if not (served and call.kind == "pull"))
            updates += (call for call in done if served and call.kind == "pull")
        return reductions, updates


def _kernel(
    message: Message,
    parameters: Mapping[str, torch.Tensor],
    transport: Transport,
    make_optimizer: MakeOptimizer | None,
) -> Kernel:
    if message.sync.sparse_rows:
        return SparseKernel(message, parameters, transport)
    if message.is_served:
        return ParameterServerKernel(message, parameters, transport, make_optimizer)
    return AllReduceKernel(message, parameters, transport)
