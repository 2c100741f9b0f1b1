"""Virtual ranks: run the executor's own code on every device of a mesh, as threads of one process.

    ranks = VirtualRanks(mesh)
    parts = ranks.run(lambda runtime: ops.all_reduce(inputs[runtime.rank], (0,), "all_reduce"))

Only ``torch.distributed`` itself is replaced, below ``executor._torch_distributed``: a test here covers the functions
that real ranks run, including their backward. One ``run`` at a time per process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, TypeVar
from unittest import mock

import torch
import torch.distributed as dist

from autosbp.executor import _torch_distributed
from autosbp.executor.runtime import Runtime
from autosbp.sbp.mesh import Axis, Mesh

TIMEOUT_S = 60.0
_JOINS: dict[Any, Callable[..., torch.Tensor]] = {dist.ReduceOp.MAX: torch.amax, dist.ReduceOp.MIN: torch.amin}
T = TypeVar("T")
_here = threading.local()


def plain_mesh(*sizes: int) -> Mesh:
    """A mesh with axes of these sizes, all in one level."""
    count = 1
    for size in sizes:
        count *= size
    return Mesh(tuple(Axis(f"a{at}", size, 0) for at, size in enumerate(sizes)), (count,))


class Group:
    """The threads of one process group. All members must call ``swap`` equally often and in the same order."""

    def __init__(self, ranks: tuple[int, ...]) -> None:
        self.ranks = ranks
        self.barrier = threading.Barrier(len(ranks), timeout=TIMEOUT_S)
        self._slots: list[torch.Tensor] = [torch.empty(0)] * len(ranks)

    @property
    def place(self) -> int:
        """The caller's index in the group."""
        return self.ranks.index(_here.runtime.rank)

    def exchange(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Exchange tensors: return every member's tensor, in group order."""
        self._slots[self.place] = tensor.detach().clone()
        self.barrier.wait()
        found = list(self._slots)
        self.barrier.wait()
        return found


@dataclass
class VirtualRuntime(Runtime):
    """A rank whose process groups are created on first use."""

    ranks: VirtualRanks | None = field(default=None, repr=False)

    def make_groups(self, axes_sets: list[tuple[int, ...]]) -> None:
        """Do nothing: groups are created on first use."""

    def group(self, axes: tuple[int, ...]) -> tuple[Any, list[int]]:
        assert self.ranks is not None
        members = self.mesh.group_ranks(axes, self.rank)
        return self.ranks.group(tuple(members)), members


class VirtualRanks:
    """All ranks of ``mesh``."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self._groups: dict[tuple[int, ...], Group] = {}
        self._mailboxes: dict[tuple[int, int], SimpleQueue[torch.Tensor]] = {}
        self._failed = False
        self._lock = threading.Lock()

    def group(self, ranks: tuple[int, ...]) -> Group:
        with self._lock:
            return self._groups.setdefault(ranks, Group(ranks))

    def mailbox(self, source: int, to: int) -> SimpleQueue[torch.Tensor]:
        """Queue of the messages from one rank to another."""
        with self._lock:
            return self._mailboxes.setdefault((source, to), SimpleQueue())

    def receive(self, source: int, to: int) -> torch.Tensor:
        """The next message from ``source``; raise ``BrokenBarrierError`` if a rank has failed or after ``TIMEOUT_S``."""
        box, deadline = self.mailbox(source, to), time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline and not self._failed:
            try:
                return box.get(timeout=0.2)
            except Empty:
                continue
        raise threading.BrokenBarrierError(f"rank {to} waits for rank {source}")

    def run(self, work: Callable[[Runtime], T]) -> list[T]:
        """Run ``work`` on every rank concurrently; return results by rank.

        The first rank's error is raised after all ranks have stopped.
        """
        results: dict[int, T] = {}
        errors: list[BaseException] = []

        def member(rank: int) -> None:
            _here.runtime = VirtualRuntime(self.mesh, rank, torch.device("cpu"), ranks=self)
            try:
                with _here.runtime.active():
                    results[rank] = work(_here.runtime)
            except BaseException as error:  # noqa: B036 - handed to the caller
                errors.append(error)
                with self._lock:
                    self._failed = True
                    for group in self._groups.values():
                        group.barrier.abort()

        threads = [threading.Thread(target=member, args=(rank,), daemon=True) for rank in range(self.mesh.size)]
        with _virtual_distributed(self):
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        if errors:
            self._groups.clear()
            self._mailboxes.clear()
            self._failed = False
            raise next((error for error in errors if not isinstance(error, threading.BrokenBarrierError)), errors[0])
        return [results[rank] for rank in range(self.mesh.size)]


class _CompletedWork:
    """Work handle of a collective that has already completed."""

    def wait(self) -> None:
        """Return at once."""


class _Distributed:
    """The part of ``torch.distributed`` that ``executor._torch_distributed`` uses."""

    ReduceOp = dist.ReduceOp
    isend, irecv = "isend", "irecv"

    def __init__(self, ranks: VirtualRanks) -> None:
        self._ranks = ranks

    @staticmethod
    def all_gather(out: torch.Tensor, part: torch.Tensor, group: Group, async_op: bool = False) -> _CompletedWork:  # noqa: ARG004
        out.copy_(torch.cat([piece.reshape(-1) for piece in group.exchange(part)]).view_as(out))
        return _CompletedWork()

    @staticmethod
    def reduce_scatter(
        part: torch.Tensor,
        source: torch.Tensor,
        op: Any = dist.ReduceOp.SUM,
        group: Any = None,
        async_op: bool = False,  # noqa: ARG004
    ) -> _CompletedWork:
        total = _JOINS.get(op, torch.sum)(torch.stack(group.exchange(source)), 0)
        part.copy_(total.chunk(len(group.ranks))[group.place])
        return _CompletedWork()

    @staticmethod
    def all_reduce(
        tensor: torch.Tensor,
        op: Any = dist.ReduceOp.SUM,
        group: Any = None,
        async_op: bool = False,  # noqa: ARG004
    ) -> _CompletedWork:
        tensor.copy_(_JOINS.get(op, torch.sum)(torch.stack(group.exchange(tensor)), 0))
        return _CompletedWork()

    @staticmethod
    def all_to_all_single(out: torch.Tensor, source: torch.Tensor, group: Group) -> None:
        size, place = len(group.ranks), group.place
        out.copy_(torch.cat([piece.chunk(size)[place] for piece in group.exchange(source)]))

    @staticmethod
    def P2POp(kind: str, tensor: torch.Tensor, peer: int) -> tuple[str, torch.Tensor, int]:  # noqa: N802
        return kind, tensor, peer

    def batch_isend_irecv(self, operations: list[tuple[str, torch.Tensor, int]]) -> list[Any]:
        here = _here.runtime.rank
        for kind, tensor, peer in operations:
            if kind == "isend":
                self._ranks.mailbox(here, peer).put(tensor.detach().clone())
        for kind, tensor, peer in operations:
            if kind == "irecv":
                tensor.copy_(self._ranks.receive(peer, here))
        return []


def _virtual_distributed(ranks: VirtualRanks) -> Any:
    """Context in which the executor's communication of this process goes between threads."""
    distributed = _Distributed(ranks)
    return _Patches(
        mock.patch.multiple(
            _torch_distributed,
            dist=distributed,
            _all_gather=distributed.all_gather,
            _reduce_scatter=distributed.reduce_scatter,
        ),
    )


class _Patches:
    def __init__(self, *patches: Any) -> None:
        self._patches = patches

    def __enter__(self) -> None:
        for patch in self._patches:
            patch.start()

    def __exit__(self, *_: object) -> None:
        for patch in reversed(self._patches):
            patch.stop()
