"""What a model needs, counted from its graph without a search."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any

from autosbp.cluster import Cluster
from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.calibration import Calibration
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.evaluate import evaluate
from autosbp.costmodel.memory import memory_bytes
from autosbp.costmodel.network import NetworkModel
from autosbp.graph.ir import LogicalGraph
from autosbp.plan import Signature, Strategy
from autosbp.sbp.mesh import Mesh
from autosbp.sbp.rules import sharding_of


def estimate(
    graph: LogicalGraph,
    micro_batch: int = 1,
    optimizer: str = "adamw",
    cluster: Cluster | None = None,
    calibration: Calibration | None = None,
) -> dict[str, Any]:
    """Parameters, FLOPs and memory of a step of so many samples on one device, and what ``cluster`` would hold and take."""
    found = _Estimate(graph, micro_batch, optimizer)
    return found.document(cluster, calibration)


@dataclass(frozen=True)
class _Estimate:
    graph: LogicalGraph
    micro_batch: int
    optimizer: str

    def document(self, cluster: Cluster | None, measured: Calibration | None) -> dict[str, Any]:
        bound = self.graph.bind(**dict.fromkeys(self.graph.symbols, self.micro_batch))
        memory = memory_bytes(bound, self._undivided(bound))
        flops = sum(sharding_of(bound, node).flops for node in bound.nodes if node.name in bound.computed)
        document = {
            **self.graph.summary(),
            "micro_batch": self.micro_batch,
            "optimizer": self.optimizer,
            "flops_per_sample_forward": flops / self.micro_batch,
            "memory_breakdown": memory,
            "memory_bytes_one_device": sum(memory.values()),
        }
        return document if cluster is None else {**document, "cluster": self._on(cluster, measured, bound, memory)}

    def _undivided(self, bound: LogicalGraph) -> Strategy:
        """The strategy of one device: a mesh without axes."""
        signatures = {
            node.name: Signature(((),) * len(list(node.refs())), ((),) * len(node.outputs))
            for node in bound.nodes
            if node.name in bound.computed
        }
        parameters = {leaf.name: () for leaf in bound.parameters}
        return Strategy(Mesh((), (1,)), signatures, parameters, {}, self.micro_batch, self.micro_batch, self.optimizer)

    def _on(
        self, cluster: Cluster, measured: Calibration | None, bound: LogicalGraph, memory: dict[str, int]
    ) -> dict[str, Any]:
        """Bounds that no strategy can beat: training state split over all devices, time without communication."""
        strategy, compute = self._undivided(bound), ComputeModel(cluster.device, measured)
        alone = evaluate(bound, strategy, BoxingModel(NetworkModel(cluster, measured), strategy.mesh), compute)
        gradients = sum(leaf.meta.num_bytes for leaf in bound.trained)
        state = memory["parameters"] + gradients + memory["optimizer"]
        limit = cluster.device.memory_bytes
        return {
            "name": cluster.name,
            "num_devices": cluster.num_devices,
            "memory_limit_bytes": limit,
            "fits_one_device": sum(memory.values()) <= limit,
            "least_memory_bytes_per_device": ceil(state / cluster.num_devices),
            "least_num_devices": ceil(state / limit),
            "one_device_step_time_s": alone.step_time_s,
            "one_device_compute_s": alone.compute_s,
        }
