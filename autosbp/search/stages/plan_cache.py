"""Cache between plans of one thread, for planning again with another batch, other links, more nodes or a changed layer.

It is bounded, and holds results of pure functions, keyed by all their inputs, so plans do not depend on it. Parts of a
graph are keyed by its hash. Boxing tables, and results derived from them, are keyed by step costs and tensor shape, for
any graph.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable

from autosbp.costmodel.boxing import BoxingModel, BoxingTables
from autosbp.costmodel.network import NetworkModel
from autosbp.graph.ir import LogicalGraph
from autosbp.sbp.mesh import Mesh
from autosbp.search.problem.graph_parts import GraphParts

MAX_GRAPHS = 2
MAX_BYTES = 192 << 20
"""Maximum bytes of boxing tables kept between plans."""


class PlanCache(threading.local):
    """Least recently used cache, one per thread; see the module's docstring."""

    def __init__(self) -> None:
        self._parts: OrderedDict[Hashable, GraphParts] = OrderedDict()
        self._tables: OrderedDict[Hashable, BoxingTables] = OrderedDict()

    def parts(
        self,
        graph: LogicalGraph,
        pinned: frozenset[str],
        stored: frozenset[str],
        counts: frozenset[int],
        *,
        folds: bool,
    ) -> GraphParts:
        """Parts of this graph or of one with the same hash; arguments as of ``GraphParts``."""
        key = (graph.graph_hash, pinned, stored, counts, folds)
        found = self._parts.pop(key, None) or GraphParts(graph, pinned, stored, counts, folds=folds)
        self._parts[key] = found
        while len(self._parts) > MAX_GRAPHS:
            self._parts.popitem(last=False)
        return found

    def boxing(self, network: NetworkModel, mesh: Mesh, copy_bytes_per_s: float) -> BoxingModel:
        """A boxing model that shares the tables of earlier models with equal costs."""
        key = (network.key, network.cluster.device.op_overhead_s, mesh, copy_bytes_per_s)
        tables = self._tables.pop(key, None) or BoxingTables()
        self._tables[key] = tables
        return BoxingModel(network, mesh, copy_bytes_per_s, tables)

    def trim(self, most_bytes: int = MAX_BYTES) -> None:
        """Drop the least recently used tables until the rest has at most ``most_bytes``."""
        total = 0
        for key in reversed(list(self._tables)):
            total += self._tables[key].num_bytes
            if total > most_bytes:
                del self._tables[key]

    def clear(self) -> None:
        """Clear the cache."""
        self._parts.clear()
        self._tables.clear()


PLAN_CACHE = PlanCache()
