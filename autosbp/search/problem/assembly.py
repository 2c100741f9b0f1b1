"""What every part of a search problem is put together with: variables, edges, and tables that are made once."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from autosbp.costmodel.boxing import BoxingTable
from autosbp.graph.ir import Ref
from autosbp.sbp.groups import sends_gradient
from autosbp.sbp.placement import NdSbp, Sbp
from autosbp.search._base import Edge
from autosbp.search.problem.analysis import Read
from autosbp.search.problem.clusters import OpCluster
from autosbp.search.problem.domains import ValueCosts
from autosbp.search.problem.dominance import Port

if TYPE_CHECKING:
    from autosbp.search.problem.build import ProblemBuilder

Allowed = Callable[[OpCluster, int, int], bool]


class Assembly:
    """A problem in the making."""

    def __init__(self, builder: ProblemBuilder, limit: int | None, allowed: Allowed | None) -> None:
        self.builder, self.limit, self.allowed = builder, limit, allowed
        self.graph, self.boxing, self.analysis = builder.graph, builder.boxing, builder.analysis
        self.names: list[str] = []
        self.anchors: list[str] = []
        self.unary: list[NDArray[np.float64]] = []
        self.memory: list[NDArray[np.int64]] = []
        self.parts: list[ValueCosts] = []
        self.edges: list[Edge] = []
        self.ports: dict[int, list[Port]] = {}
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
        """Boxing of a value for ops in a zone, as much as each part of it counts of what a microbatch does."""
        meta, gradient = self.graph.meta(ref), self.graph.has_gradient(ref) and sends_gradient(label)
        return self.boxing.table(meta.sizes, meta.num_bytes, gradient, again=again, shares=self.builder.shares[zone])

    def _stored_table(self, ref: Ref, label: str = "") -> BoxingTable:
        """Boxing of a parameter from where it is stored."""
        meta, gradient = self.graph.meta(ref), self.graph.has_gradient(ref) and sends_gradient(label)
        shares = self.builder.unary.stores.path_shares
        return self.boxing.table(meta.sizes, meta.num_bytes, gradient, shares=shares)

    def _states(self, read: Read) -> tuple[Sbp, ...]:
        return self.analysis.clusters[read.cluster].input_states(read.node.name, read.position)

    def _port(self, ids: NDArray[np.int64], table: BoxingTable | None, *, made: bool = False) -> Port:
        """Where a variable whose values have these layout ids meets an edge."""
        among: NDArray[np.float64] | None = None
        if table is not None:
            key = ("among", id(table), ids.tobytes())
            if key not in self._tables:
                self._tables[key] = self._between(table, ids, ids)
            among = self._tables[key]
        return Port(ids, among, made)

    def _local_bytes(self, layout: NdSbp, num_bytes: int) -> float:
        for axis, sbp in zip(self.boxing.mesh.axes, layout, strict=True):
            if sbp.is_split:
                num_bytes //= axis.size
        return float(num_bytes)

    def _between(
        self, table: BoxingTable, sources: NDArray[np.int64], targets: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Weighted seconds from each layout to each."""
        return np.ascontiguousarray(table.costs_of(sources)[:, targets] * self.builder.weights.micro)
