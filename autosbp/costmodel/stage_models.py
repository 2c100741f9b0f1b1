"""Cost models of the stages of a pipeline: one for all where devices are alike, one for each group where they are not."""

from __future__ import annotations

from autosbp.cluster import Cluster
from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.deliveries import LinkModel
from autosbp.costmodel.network import NetworkModel

Models = tuple[BoxingModel, ComputeModel]


class StageModels:
    """Of stages that have the devices of one mesh each, one behind the other.

    Args:
        boxing, compute: of the whole cluster, on the mesh of one stage.

    ``groups`` are those of the cluster that each stage is on; none where all devices are alike.
    """

    def __init__(self, boxing: BoxingModel, compute: ComputeModel, num_stages: int) -> None:
        self.cluster, self._mesh = boxing.network.cluster, boxing.mesh
        self.groups = tuple(stage_groups(self.cluster, self._mesh.size, stage, stage) for stage in range(num_stages))
        every = tuple(range(len(self.cluster.groups)))
        self._models: dict[tuple[int, ...], Models] = {every: (boxing, compute)}
        self._links: dict[tuple[int, ...], LinkModel] = {}

    def __getitem__(self, stage: int) -> Models:
        """The models of a stage's devices."""
        return self._of(self.groups[stage])

    def between(self, source: int, target: int) -> LinkModel:
        """Of messages from a stage to another."""
        groups = stage_groups(self.cluster, self._mesh.size, min(source, target), max(source, target))
        if groups not in self._links:
            boxing, _ = self._of(groups)
            self._links[groups] = LinkModel(boxing.network, boxing.copy_bytes_per_s)
        return self._links[groups]

    def _of(self, groups: tuple[int, ...]) -> Models:
        if groups not in self._models:
            part = self.cluster.part(groups)
            compute = ComputeModel(part.device)
            self._models[groups] = BoxingModel(NetworkModel(part), self._mesh, compute.copy_bytes_per_s), compute
        return self._models[groups]


def stage_groups(cluster: Cluster, size: int, first: int, last: int) -> tuple[int, ...]:
    """The groups that stages of ``size`` devices are on, from the first to the last."""
    return cluster.groups_of(first * size, (last + 1) * size - 1)


def stage_limits(cluster: Cluster, size: int, num_stages: int, limit: int | None = None) -> tuple[int, ...]:
    """Bytes of one device of each stage, at most ``limit``."""
    found = []
    for stage in range(num_stages):
        there = cluster.part(stage_groups(cluster, size, stage, stage)).device.memory_bytes
        found.append(there if limit is None else min(there, limit))
    return tuple(found)
