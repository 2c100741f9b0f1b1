"""Meshes of pipeline stages: equal meshes on consecutive devices."""

from __future__ import annotations

from dataclasses import dataclass

from autosbp.sbp.mesh import Mesh


@dataclass(frozen=True, slots=True)
class StageMesh(Mesh):
    """A mesh whose rank 0 is device ``first``."""

    first: int

    def device(self, rank: int) -> int:
        return self.first + rank


def stage_mesh(mesh: Mesh, stage: int) -> StageMesh:
    """The mesh of one stage, with as many devices as ``mesh``."""
    return StageMesh(mesh.axes, mesh.level_counts, stage * mesh.size)
