"""Runtimes of meshes over some of the processes."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import torch

from autosbp.executor.process_groups import process_group
from autosbp.executor.runtime import IssuedCollective, Runtime
from autosbp.program.placed_mesh import PlacedMesh


def submesh_runtime(
    mesh: PlacedMesh, here: int, device: torch.device, issued: list[IssuedCollective], seed: int = 0
) -> Runtime | None:
    """The runtime of process ``here`` on ``mesh``, None outside of it.

    It has groups over all sets of axes that span more than one process. Call on every process, in the same order.
    ``issued`` gets the records, in process numbers.
    """
    groups: dict[tuple[int, ...], tuple[Any, list[int]]] = {}
    for count in range(1, mesh.ndim + 1):
        for axes in combinations(range(mesh.ndim), count):
            for ranks in mesh.all_groups(axes) if mesh.group_size(axes) > 1 else ():
                devices = [mesh.device(rank) for rank in ranks]
                group = process_group(devices)
                if here in devices:
                    groups[axes] = group, devices
    rank = mesh.rank_of(here)
    return None if rank is None else Runtime(mesh, rank, device, issued, seed=seed, _groups=groups)
