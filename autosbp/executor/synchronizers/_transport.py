"""Collectives and P2P messages of synchronizers, over separate process groups, and a record of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from autosbp.executor import _torch_distributed
from autosbp.executor.process_groups import process_group
from autosbp.executor.runtime import IssuedCollective
from autosbp.program.gradient_messages import Message, MessageCall, participates
from autosbp.program.stage_mesh import stage_mesh
from autosbp.sbp.mesh import Mesh

PURPOSE = "synchronizers"
SyncGroups = Mapping[tuple[int, ...], tuple[Any, list[int]]]
"""Process group and its devices in order, by mesh axes."""


def sync_groups(mesh: Mesh, num_stages: int, axes_sets: Iterable[tuple[int, ...]], here: int) -> SyncGroups:
    """Create process groups over sets of mesh axes; returns those of device ``here``.

    This is collective: every process of all stages has to make the same call.
    """
    found: dict[tuple[int, ...], tuple[Any, list[int]]] = {}
    for axes in sorted(set(axes_sets)):
        for stage in range(num_stages):
            own = stage_mesh(mesh, stage) if num_stages > 1 else mesh
            for ranks in own.all_groups(axes):
                devices = [own.device(rank) for rank in ranks]
                group = process_group(devices, PURPOSE)
                if here in devices:
                    found[axes] = group, devices
    return found


@dataclass(slots=True)
class Transport:
    """Communication of one message.

    Args:
        mesh, rank: mesh of the stage, and this rank in it.
        groups: this process's groups.
        issued: record of the issued collectives and messages.
    """

    mesh: Mesh
    rank: int
    groups: SyncGroups
    issued: list[IssuedCollective] = field(default_factory=list)

    def replica(self, axes: Sequence[int]) -> int:
        """This rank's position in its group over ``axes``."""
        coordinate, place = self.mesh.coordinate(self.rank), 0
        for axis in axes:
            place = place * self.mesh.axes[axis].size + coordinate[axis]
        return place

    def all_reduce(self, flat: torch.Tensor, axes: tuple[int, ...], op: Any = dist.ReduceOp.SUM) -> None:
        """Sum the group's tensors in place."""
        group, devices = self.groups[axes]
        self._record("all_reduce", flat, devices)
        dist.all_reduce(flat, op=op, group=group)

    def reduce_scatter(self, whole: torch.Tensor, axes: tuple[int, ...]) -> torch.Tensor:
        """This rank's part of the sum of the group's flat tensors."""
        group, devices = self.groups[axes]
        part = whole.new_empty(whole.numel() // len(devices))
        self._record("reduce_scatter", whole, devices)
        _torch_distributed.start_reduce_scatter(part, whole, group).wait()
        return part

    def all_gather(self, part: torch.Tensor, axes: tuple[int, ...], out: torch.Tensor | None = None) -> torch.Tensor:
        """The group's flat tensors, concatenated."""
        group, devices = self.groups[axes]
        whole = part.new_empty(part.numel() * len(devices)) if out is None else out
        self._record("all_gather", whole, devices)
        _torch_distributed.start_all_gather(whole, part, group).wait()
        return whole

    def push(self, messages: Sequence[tuple[MessageCall, torch.Tensor]]) -> list[list[torch.Tensor]]:
        """Send each tensor to the root of its call, all concurrently.

        Returns:
            For each call, the tensors that this rank received as its root.
        """
        received: list[list[torch.Tensor]] = []
        sends, receives = [], []
        for tag, (call, tensor) in enumerate(messages):
            arrived: list[torch.Tensor] = []
            received.append(arrived)
            if not self._takes_part(call, tensor):
                continue
            _, devices = self.groups[call.axes]
            if self._is_root(call):
                for at, device in enumerate(devices):
                    if at != call.root:
                        arrived.append(torch.empty_like(tensor))
                        receives.append((arrived[-1], device, tag))
            else:
                sends.append((tensor, devices[call.root], tag))
        self._exchange(messages, sends, receives)
        return received

    def pull(self, messages: Sequence[tuple[MessageCall, torch.Tensor]]) -> None:
        """Send each tensor from the root of its call to the other ranks of the group, in place, all concurrently."""
        sends, receives = [], []
        for tag, (call, tensor) in enumerate(messages):
            if not self._takes_part(call, tensor):
                continue
            _, devices = self.groups[call.axes]
            if self._is_root(call):
                sends += [(tensor, device, tag) for at, device in enumerate(devices) if at != call.root]
            else:
                receives.append((tensor, devices[call.root], tag))
        self._exchange(messages, sends, receives)

    def sends(self, call: MessageCall) -> bool:
        """Whether this rank sends a message to the root of a push."""
        return participates(self.mesh, self.rank, call) and not self._is_root(call)

    def _is_root(self, call: MessageCall) -> bool:
        return self.replica(call.axes) == call.root

    def _takes_part(self, call: MessageCall, tensor: torch.Tensor) -> bool:
        if not participates(self.mesh, self.rank, call):
            return False
        _, devices = self.groups[call.axes]
        others = [device for at, device in enumerate(devices) if at != call.root]
        self._record(call.kind, tensor, [devices[call.root], *others])
        return True

    def _exchange(self, messages: Sequence[tuple[MessageCall, torch.Tensor]], sends: Any, receives: Any) -> None:
        if messages:
            group, _ = self.groups[messages[0][0].axes]
            _torch_distributed.exchange_messages(sends, receives, group)

    def _record(self, kind: str, tensor: torch.Tensor, devices: Sequence[int]) -> None:
        self.issued.append(IssuedCollective(kind, tensor.numel() * tensor.element_size(), tuple(devices)))


def message_axes(message: Message) -> list[tuple[int, ...]]:
    """Mesh axes of all process groups that a message needs."""
    kinds = (*message.reduction(), *message.update())
    return [*(call.axes for call in kinds), message.axes]
