"""Shared parts of problem builders: variables, edges, and cached tables."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from autosbp.costmodel.boxing import BoxingModel, BoxingTable, CostShares
from autosbp.graph.ir import LogicalGraph, Ref
from autosbp.program.shared_boxing import sends_gradient
from autosbp.sbp.layout import NdSbp, Sbp
from autosbp.search._base import Edge
from autosbp.search.problem.cost_weights import CostWeights
from autosbp.search.problem.domains import UnaryCosts, ValueCosts
from autosbp.search.problem.dominance import EdgePort
from autosbp.search.problem.graph_analysis import ClusterRead, GraphAnalysis
from autosbp.search.problem.op_clusters import OpCluster

Allowed = Callable[[OpCluster, int, int], bool]


class BuilderTables(Protocol):
    """What problems of one graph, mesh and parameter sharding share; a ``ProblemBuilder`` has it."""

    graph: LogicalGraph
    boxing: BoxingModel
    analysis: GraphAnalysis
    weights: CostWeights
    unary: UnaryCosts
    shares: dict[str, CostShares | None]
    tables: dict[Hashable, NDArray[np.float64]]


class ProblemParts:
    """A problem under construction."""

    def __init__(self, builder: BuilderTables, limit: int | None, allowed: Allowed | None) -> None:
        self.builder, self.limit, self.allowed = builder, limit, allowed
        self.graph, self.boxing, self.analysis = builder.graph, builder.boxing, builder.analysis
        self.names: list[str] = []
        self.anchors: list[str] = []
        self.unary: list[NDArray[np.float64]] = []
        self.memory: list[NDArray[np.int64]] = []
        self.parts: list[ValueCosts] = []
        self.edges: list[Edge] = []
        self.ports: dict[int, list[EdgePort]] = {}
        self._costs: dict[Hashable, ValueCosts] = {}
        self._tables = builder.tables

    def _variable(self, name: str, costs: ValueCosts, anchor: str) -> int:
        self.names.append(name)
        self.anchors.append(anchor)
        self.unary.append(costs.seconds)
        self.memory.append(costs.memory)
        self.parts.append(costs)
        return len(self.names) - 1

    def _table(self, ref: Ref, label: str, zone: str, *, again: bool) -> BoxingTable:
        """Boxing costs of a value for ops in a zone, each part weighted by its share in a microbatch."""
        meta, gradient = self.graph.meta(ref), self.graph.has_gradient(ref) and sends_gradient(label)
        return self.boxing.table(meta.sizes, meta.num_bytes, gradient, again=again, shares=self.builder.shares[zone])

    def _stored_table(self, ref: Ref, label: str = "") -> BoxingTable:
        """Boxing costs of a parameter from its stored layout."""
        meta, gradient = self.graph.meta(ref), self.graph.has_gradient(ref) and sends_gradient(label)
        shares = self.builder.unary.main_parameter_costs.path_shares
        return self.boxing.table(meta.sizes, meta.num_bytes, gradient, shares=shares)

    def _states(self, read: ClusterRead) -> tuple[Sbp, ...]:
        return self.analysis.clusters[read.cluster].input_states(read.node.name, read.position)

    def _port(self, ids: NDArray[np.int64], table: BoxingTable | None, *, made: bool = False) -> EdgePort:
        """The point where a variable, whose values have these layout ids, meets an edge."""
        among: NDArray[np.float64] | None = None
        if table is not None:
            key = ("among", id(table), ids.tobytes())
            if key not in self._tables:
                self._tables[key] = self._between(table, ids, ids)
            among = self._tables[key]
        return EdgePort(ids, among, made)

    def _local_bytes(self, layout: NdSbp, num_bytes: int) -> float:
        for axis, sbp in zip(self.boxing.mesh.axes, layout, strict=True):
            if sbp.is_split:
                num_bytes //= axis.size
        return float(num_bytes)

    def _between(
        self, table: BoxingTable, sources: NDArray[np.int64], targets: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Weighted seconds [source, target] between layouts."""
        return np.ascontiguousarray(table.costs_of(sources)[:, targets] * self.builder.weights.micro)
