"""What is kept between plans of one thread, within bounds: re-planning for another batch, other links, more nodes or a
changed layer begins with it.

Kept are results of pure functions, by all that these read, so a plan is the same with and without. A graph's parts are
kept by its hash; boxing tables by what steps cost and the shape of a tensor, whatever graph it is of, and with them what
callers work out from these.
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
"""Of boxing tables that are kept from one plan to the next."""


class Reuse(threading.local):
    """See the module's docstring. What was used last is kept; each thread has its own."""

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
        """Those of this graph, or of one with the same hash; arguments as of ``GraphParts``."""
        key = (graph.graph_hash, pinned, stored, counts, folds)
        found = self._parts.pop(key, None) or GraphParts(graph, pinned, stored, counts, folds=folds)
        self._parts[key] = found
        while len(self._parts) > MAX_GRAPHS:
            self._parts.popitem(last=False)
        return found

    def boxing(self, network: NetworkModel, mesh: Mesh, copy_bytes_per_s: float) -> BoxingModel:
        """A boxing model with the tables of earlier ones that cost the same."""
        key = (network.key, network.cluster.device.op_overhead_s, mesh, copy_bytes_per_s)
        tables = self._tables.pop(key, None) or BoxingTables()
        self._tables[key] = tables
        return BoxingModel(network, mesh, copy_bytes_per_s, tables)

    def trim(self, most_bytes: int = MAX_BYTES) -> None:
        """Forget the tables that were asked for longest ago, until the rest has no more bytes than this."""
        total = 0
        for key in reversed(list(self._tables)):
            total += self._tables[key].num_bytes
            if total > most_bytes:
                del self._tables[key]

    def clear(self) -> None:
        """Forget all."""
        self._parts.clear()
        self._tables.clear()


REUSE = Reuse()
