"""Cost models per pipeline stage: one for all if devices are alike, one per node group if not."""

from __future__ import annotations

from autosbp.cluster.memory_reserve import usable_memory_bytes
from autosbp.cluster.spec import Cluster
from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.network import NetworkModel
from autosbp.costmodel.p2p_cost import LinkModel

Models = tuple[BoxingModel, ComputeModel]


class StageModels:
    """Models of consecutive stages, each on the devices of one mesh.

    Args:
        boxing, compute: of the whole cluster, on the mesh of one stage.

    ``groups[stage]`` are the cluster's groups that a stage is on; empty if all devices are alike.
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
        """Link model of messages from one stage to another."""
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
    """Indices of the cluster's groups that stages ``first`` to ``last``, of ``size`` devices each, are on."""
    return cluster.groups_of(first * size, (last + 1) * size - 1)


def stage_limits(cluster: Cluster, size: int, num_stages: int, limit: int | None = None) -> tuple[int, ...]:
    """Memory bytes of one device of each stage, capped at ``limit``."""
    found = []
    for stage in range(num_stages):
        device = cluster.part(stage_groups(cluster, size, stage, stage)).device
        there = usable_memory_bytes(device, cluster.num_devices)
        found.append(there if limit is None else min(there, limit))
    return tuple(found)
