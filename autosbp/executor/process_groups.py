"""Process groups, each made once: a group takes threads, sockets and a rendezvous, and none of them ever ends by itself.

All that asks for the ranks of one group shares it. Collectives of a group are matched by their order, and programs on the
same ranks issue theirs in one order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from autosbp.sbp.mesh import Mesh

_groups: dict[tuple[int, ...], Any] = {}
_meshes: dict[tuple[Mesh, str], Any] = {}
_world: list[Any] = []


def process_group(ranks: Sequence[int]) -> Any:
    """The group of these processes, in this order. The first call for them is collective: every process of the job makes
    the same ones in the same order, also those that it is not in."""
    _begin()
    key = tuple(ranks)
    if key not in _groups:
        _groups[key] = dist.new_group(list(ranks))
    return _groups[key]


def device_mesh(mesh: Mesh, device_type: str) -> Any:
    """The torch DeviceMesh of a mesh, axes by name; collective as ``process_group`` is."""
    from torch.distributed.device_mesh import init_device_mesh

    _begin()
    key = mesh, device_type
    if key not in _meshes:
        names = tuple(axis.name for axis in mesh.axes)
        _meshes[key] = init_device_mesh(device_type, mesh.shape, mesh_dim_names=names)
    return _meshes[key]


def _begin() -> None:
    """Groups end with the job's own group; another one begins anew."""
    if _world != [dist.group.WORLD]:
        _groups.clear()
        _meshes.clear()
        _world[:] = [dist.group.WORLD]
