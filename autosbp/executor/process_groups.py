"""Process groups, each created once: a group takes threads, sockets and a rendezvous, which are never freed.

All users of the same ranks share a group. Collectives of a group are matched by their order, and programs on the same
ranks issue theirs in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from autosbp.sbp.mesh import Mesh

_groups: dict[tuple[str, tuple[int, ...]], Any] = {}
_meshes: dict[tuple[Mesh, str], Any] = {}
_world: list[Any] = []


def process_group(ranks: Sequence[int], purpose: str = "") -> Any:
    """The group of these processes, in this order. Collectives of different purposes have no order among each other.

    The first call for given ranks is collective: every process of the job makes the same calls in the same order,
    including those outside of the group.
    """
    _begin()
    key = purpose, tuple(ranks)
    if key not in _groups:
        _groups[key] = dist.new_group(list(ranks), timeout=_world_timeout())
    return _groups[key]


def stage_device_mesh(mesh: Mesh, num_stages: int, device_type: str) -> Any:
    """The torch DeviceMesh of this process's pipeline stage; collective like ``process_group``.

    A stage of one device has one axis of size 1: torch's ops take no mesh without axes."""
    from torch.distributed.device_mesh import DeviceMesh

    _begin()
    names = tuple(axis.name for axis in mesh.axes)
    for stage in range(num_stages):
        key = mesh, f"{device_type} of stage {stage} of {num_stages}"
        if key not in _meshes:
            ranks = torch.arange(stage * mesh.size, (stage + 1) * mesh.size).reshape(mesh.shape or (1,))
            _meshes[key] = DeviceMesh(device_type, ranks, mesh_dim_names=names or ("one",))
    return _meshes[mesh, f"{device_type} of stage {dist.get_rank() // mesh.size} of {num_stages}"]


def _world_timeout() -> timedelta:
    """The timeout that the job was started with; a new group has torch's default instead, 30 minutes on Gloo."""
    world: Any = dist.group.WORLD
    device = torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")
    timeout: timedelta = world._get_backend(device).options._timeout
    return timeout


def _begin() -> None:
    """Drop the groups of an earlier job: they end with its world group."""
    if _world != [dist.group.WORLD]:
        _groups.clear()
        _meshes.clear()
        _world[:] = [dist.group.WORLD]
