"""Requirements of a model, counted from its graph without a search."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from math import ceil, prod
from typing import Any

from autosbp.cluster.hardware import presets
from autosbp.cluster.memory_reserve import usable_memory_bytes
from autosbp.cluster.spec import Cluster, load_cluster
from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.calibration import Calibration
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.memory import memory_bytes
from autosbp.costmodel.memory.optimizer_state import optimizer_bytes_per_element
from autosbp.costmodel.network import NetworkModel
from autosbp.costmodel.strategy_cost import evaluate
from autosbp.graph.ir import DTYPE_BYTES, LogicalGraph, ParameterMeta
from autosbp.plan.plan import Signature, Strategy
from autosbp.sbp.mesh import Mesh
from autosbp.sbp.rules import sharding_of


def estimate(
    graph: LogicalGraph,
    micro_batch: int = 1,
    optimizer: str = "adamw",
    cluster: Cluster | None = None,
    calibration: Calibration | None = None,
) -> dict[str, Any]:
    """Parameters, FLOPs and memory of one training step on one device.

    Args:
        graph: the model.
        micro_batch: samples of the step.
        optimizer: name of the optimizer.
        cluster: adds lower bounds of memory and devices, and the step time of one of its devices.
        calibration: of the cluster.
    """
    found = _Estimate(graph, micro_batch, optimizer)
    return found.document(cluster, calibration)


@dataclass(frozen=True)
class _Estimate:
    graph: LogicalGraph
    micro_batch: int
    optimizer: str

    def document(self, cluster: Cluster | None, measured: Calibration | None) -> dict[str, Any]:
        bound = self.graph.bind(**dict.fromkeys(self.graph.symbols, self.micro_batch))
        memory = memory_bytes(bound, self._single_device_strategy(bound))
        flops = sum(sharding_of(bound, node).flops for node in bound.nodes if node.name in bound.parameter_dependent)
        document = {
            **self.graph.summary(),
            "micro_batch": self.micro_batch,
            "optimizer": self.optimizer,
            "flops_per_sample_forward": flops / self.micro_batch,
            "training_state": self._training_state(),
            "memory_breakdown": memory,
            "memory_bytes_one_device": sum(memory.values()),
            "presets": self._presets(sum(memory.values())),
        }
        return (
            document
            if cluster is None
            else {**document, "cluster": self._cluster_bounds(cluster, measured, bound, memory)}
        )

    def _training_state(self) -> list[dict[str, Any]]:
        """Bytes of parameters, gradients and optimizer state, by dtype."""
        rows: dict[tuple[str, str], int] = defaultdict(int)
        for leaf in self.graph.parameters:
            rows["parameters", leaf.meta.dtype] += leaf.meta.num_bytes
        for leaf in self.graph.trained:
            meta, elements = leaf.meta, prod(leaf.meta.sizes)
            gradient, state = (
                (meta.gradient_dtype, meta.optimizer_dtype)
                if isinstance(meta, ParameterMeta)
                else (meta.dtype, "float32" if meta.optimizer_width > DTYPE_BYTES[meta.dtype] else meta.dtype)
            )
            rows["gradients", gradient] += elements * meta.gradient_width
            rows["optimizer state", state] += elements * optimizer_bytes_per_element(meta, self.optimizer)
        return [{"what": what, "dtype": dtype, "bytes": size} for (what, dtype), size in rows.items() if size]

    def _presets(self, one_device_bytes: int) -> list[dict[str, Any]]:
        """For each device of the cluster presets: whether a step fits, and how many hold the training state."""
        state, found = sum(row["bytes"] for row in self._training_state()), dict[str, dict[str, Any]]()
        for preset in presets()["clusters"]:
            device = load_cluster(preset).device
            if device.kind != "cuda" or device.name in found:
                continue
            limit = usable_memory_bytes(device, 1)
            fits = one_device_bytes <= limit
            least = 1 if fits else max(2, ceil(state / usable_memory_bytes(device, ceil(state / limit))))
            found[device.name] = {
                "device": device.name, "preset": preset, "memory_limit_bytes": limit, "fits_one_device": fits,
                "least_num_devices": least,
            }  # fmt: skip
        return sorted(found.values(), key=lambda row: int(row["memory_limit_bytes"]))

    def _single_device_strategy(self, bound: LogicalGraph) -> Strategy:
        """The strategy of one device: a mesh without axes."""
        signatures = {
            node.name: Signature(((),) * len(list(node.refs())), ((),) * len(node.outputs))
            for node in bound.nodes
            if node.name in bound.parameter_dependent
        }
        parameters = {leaf.name: () for leaf in bound.parameters}
        return Strategy(Mesh((), (1,)), signatures, parameters, {}, self.micro_batch, self.micro_batch, self.optimizer)

    def _cluster_bounds(
        self, cluster: Cluster, measured: Calibration | None, bound: LogicalGraph, memory: dict[str, int]
    ) -> dict[str, Any]:
        """Lower bounds for any strategy: training state sharded over all devices, and step time without communication."""
        strategy, compute = self._single_device_strategy(bound), ComputeModel(cluster.device, measured)
        alone = evaluate(bound, strategy, BoxingModel(NetworkModel(cluster, measured), strategy.mesh), compute)
        gradients = sum(leaf.meta.num_bytes for leaf in bound.trained)
        state = memory["parameters"] + gradients + memory["optimizer"]
        limit = usable_memory_bytes(cluster.device, cluster.num_devices)
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
