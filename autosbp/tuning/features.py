"""Features of a strategy for the ranking model: predicted costs, and attributes of each parameter.

These are ``z_predefined`` and ``z_raw`` of AutoDist's equation 3. The number of features depends on the model's parameters
but not on the mesh: a layout is encoded by the number of devices at each cluster level and kind of split.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autosbp.costmodel.step_event import PURPOSES
from autosbp.graph.ir import LogicalGraph
from autosbp.plan.plan import Strategy
from autosbp.plan.schedules import SCHEDULES
from autosbp.plan.synchronizers import PARAMETER_SERVER, SyncStrategy
from autosbp.sbp.layout import NdSbp
from autosbp.sbp.mesh import Mesh
from autosbp.search.problem.strategy import used_layouts

Array = NDArray[np.float32]
LEVELS = 2
"""Cluster levels that features distinguish: the outermost one, and all others together."""
EMBEDDING = "aten.embedding.default"


@dataclass(frozen=True, slots=True)
class StrategyFeatures:
    """Features of one strategy.

    Args:
        log_step_s: natural logarithm of the predicted step time in seconds.
        whole: features of the whole strategy; shape (features,).
        parameters: one row for each parameter, in the order in which the model first reads them; shape (parameters,
            features).
    """

    log_step_s: float
    whole: Array
    parameters: Array


class FeatureExtractor:
    """Extracts the features of strategies of one graph."""

    def __init__(self, graph: LogicalGraph) -> None:
        self.graph = graph
        self._reader: dict[str, str] = {}
        self._sparse: set[str] = set()
        for node in graph.nodes:
            for at, ref in enumerate(node.refs()):
                if ref.name in graph.parameter_names:
                    self._reader.setdefault(ref.name, node.name)
                    if node.op == EMBEDDING and at == 0:
                        self._sparse.add(ref.name)
        self._leaves = {leaf.name: leaf for leaf in graph.parameters}

    def extract(self, strategy: Strategy, predicted: Mapping[str, Any]) -> StrategyFeatures:
        """Features of a strategy; ``predicted`` are its costs (``Costs.to_dict``)."""
        used = used_layouts(self.graph, strategy.signatures)
        rows = [self._parameter(name, strategy, used[name]) for name in self._reader if name in used]
        step_s = float(predicted["step_time_s"])
        return StrategyFeatures(
            math.log(step_s),
            np.array(_whole(strategy, predicted, step_s), dtype=np.float32),
            np.array(rows, dtype=np.float32),
        )

    def _parameter(self, name: str, strategy: Strategy, used: NdSbp) -> list[float]:
        leaf, signature = self._leaves[name], strategy.signatures[self._reader[name]]
        return [
            math.log10(max(1, leaf.meta.num_bytes)) / 6,
            float(len(leaf.meta.sizes)) / 2,
            float(name in self._sparse),
            float(leaf.trained),
            *_split(used, strategy.mesh),
            *_split(strategy.parameters[name], strategy.mesh),
            *_split(signature.outs[0], strategy.mesh),
            *_synchronization(name, strategy.sync),
        ]


def _synchronization(name: str, sync: SyncStrategy | None) -> list[float]:
    """Kind of synchronizer, number of shards, whether it is hierarchical or sparse, and parameters per message."""
    one = None if sync is None else sync.parameters.get(name)
    if sync is None or one is None:
        return [0.0] * 5
    shared = sum(one.groups[0] in other.groups for other in sync.parameters.values())
    served = float(one.synchronizer == PARAMETER_SERVER)
    return [served, math.log2(one.num_shards), float(bool(one.order)), float(one.sparse_rows > 0), math.log2(shared)]


def _whole(strategy: Strategy, predicted: Mapping[str, Any], step_s: float) -> Sequence[float]:
    parts, pipeline = predicted["breakdown"], strategy.pipeline
    exposed = parts["exposed_comm_by_purpose_s"]
    shares = [parts[name] / step_s for name in ("compute_s", "hidden_comm_s", "bubble_s", "optimizer_s")]
    return [
        *shares,
        *(exposed.get(name, 0.0) / step_s for name in PURPOSES),
        math.log10(1 + predicted["comm_bytes_per_device"]) / 8,
        math.log10(1 + predicted["memory_bytes_per_device"]) / 10,
        math.log2(strategy.num_micro),
        math.log2(strategy.num_stages),
        math.log2(pipeline.num_virtual) if pipeline else 0.0,
        float(strategy.gather == "use"),
        math.log10(strategy.bucket_bytes) / 8,
        float(len(strategy.recompute)),
        float(strategy.offload),
        float(strategy.sync is not None),
        *(float(pipeline is not None and pipeline.schedule.name == name) for name in SCHEDULES),
        *(float(sum(math.log2(axis.size) for axis in strategy.mesh.axes if min(axis.level, LEVELS - 1) == level))
          for level in range(LEVELS)),
    ]  # fmt: skip


def _split(layout: NdSbp, mesh: Mesh) -> list[float]:
    """log2 of the number of devices by level and kind: split in dim 0, split in another dim, partial."""
    found = np.zeros((LEVELS, 3))
    for sbp, axis in zip(layout, mesh.axes, strict=True):
        kind = (0 if sbp.dim == 0 else 1) if sbp.is_split else 2 if sbp.is_partial else None
        if kind is not None:
            found[min(axis.level, LEVELS - 1), kind] += math.log2(axis.size)
    return [float(value) for value in found.ravel()]
