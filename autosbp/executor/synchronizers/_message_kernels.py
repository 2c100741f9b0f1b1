"""The kernels of one program's gradient messages, run on the rank's communication thread."""

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
    """Kernels of one program, by index of the gradient bucket.

    Args:
        flow: the program's parameter flow.
        parameters: this rank's local parameters, by name.
        mesh, rank, groups: mesh of the stage, this rank in it, and this process's groups.
        thread: communication thread, shared by all programs of the rank.
        make_optimizer: makes the optimizer of a parameter server; None if the caller's optimizer steps all parameters.
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
        """Indices and kernels of the messages whose gradients are applied by servers."""
        return ((at, kernel) for at, kernel in self.kernels.items() if kernel.message.is_served)

    @property
    def served_names(self) -> frozenset[str]:
        """Names of the parameters that servers update."""
        return frozenset(shard.name for _, kernel in self.served for shard in kernel.message.shards)

    def issue(self, at: int) -> None:
        """Start the reduction of bucket ``at``, whose gradients are complete."""
        kernel = self.kernels[at]
        kernel.fill()
        self._reducing[at] = self._thread.submit(kernel.reduce)

    def deliver(self) -> None:
        """Wait for the step's reductions, except stale ones, and set the gradients of the parameters."""
        for at, reducing in self._reducing.items():
            if not self.kernels[at].message.sync.staleness:
                reducing.result()
                self.kernels[at].deliver()
        self._reducing.clear()

    def update(self) -> None:
        """Start the servers' updates: apply the step's gradients and send the new values."""
        for at, kernel in self.served:
            self._updating[at].append(self._thread.submit(kernel.update))

    def install(self) -> None:
        """Wait for the new values that are due in this step, and copy them to the parameters."""
        for at, kernel in self.served:
            versions = self._updating[at]
            if len(versions) > kernel.message.sync.staleness:
                versions.popleft().result()
                kernel.install()

    def take_issued(self) -> tuple[list[IssuedCollective], list[IssuedCollective]]:
        """Collectives of reductions and of updates since the last call; waits until the thread is idle."""
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
