"""Process groups of a pipeline: over axes within each stage, and over ranks of equal place across stages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from autosbp.executor.process_groups import process_group
from autosbp.executor.runtime import Runtime
from autosbp.program.stage_mesh import stage_mesh
from autosbp.sbp.mesh import Mesh

Group = tuple[Any, list[int]]


class StageGroups:
    """Process groups of one process. Create it and call its methods alike on every process; each group is made once.

    Args:
        mesh: of one stage.
        num_stages: stage s has processes ``s * mesh.size`` to ``(s + 1) * mesh.size - 1``.
        here: this process.
    """

    def __init__(self, mesh: Mesh, num_stages: int, here: int) -> None:
        self.mesh, self.num_stages, self.here = mesh, num_stages, here
        self.stage, self.rank = divmod(here, mesh.size)
        self._inside: dict[tuple[int, ...], Group] = {}
        self._across: dict[tuple[int, ...], Group | None] = {}

    def runtime(self, axes_sets: Iterable[tuple[int, ...]], device: torch.device, seed: int) -> Runtime:
        """This process's runtime on the mesh of its stage, with groups over these sets of axes."""
        for axes in sorted(set(axes_sets) - set(self._inside)):
            for stage in range(self.num_stages):
                mesh = stage_mesh(self.mesh, stage)
                for ranks in mesh.all_groups(axes):
                    devices = [mesh.device(rank) for rank in ranks]
                    group = process_group(devices)
                    if self.here in devices:
                        self._inside[axes] = group, devices
        return Runtime(stage_mesh(self.mesh, self.stage), self.rank, device, seed=seed, _groups=dict(self._inside))

    def cross_stage_group(self, stages: tuple[int, ...]) -> Group | None:
        """The group of the ranks in this rank's place of these stages; None if its stage is not one of them."""
        if stages not in self._across:
            self._across[stages] = None
            for rank in range(self.mesh.size):
                devices = [stage * self.mesh.size + rank for stage in stages]
                group = process_group(devices)
                if self.here in devices:
                    self._across[stages] = group, devices
        return self._across[stages]
