"""Variables for the stored layouts of parameters that several clusters read, or whose stored layout is fixed."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from autosbp.costmodel.boxing import BoxingTable
from autosbp.graph.ir import Ref
from autosbp.program.parameter_sharding import sharded_layout
from autosbp.program.shared_boxing import boxing_group
from autosbp.sbp.layout import NdSbp, P, invariant_as_replicated
from autosbp.search._base import Edge
from autosbp.search.problem.builder_base import ProblemParts
from autosbp.search.problem.domains import Domain, ValueCosts
from autosbp.search.problem.graph_analysis import ClusterRead
from autosbp.search.problem.parameter_costs import StorageCosts
from autosbp.search.problem.pins import Pins
from autosbp.utils.arrays import unique_ints

MAX_SHARING_READERS = 2
"""Readers of a parameter that pay once for a copy that they share.

With more readers, elimination would have to split tables: each reader pays its part as if all shared one copy, so the
problem's cost is a lower bound of every strategy."""
AS_STORED, BOXED_COPY, GATHERED_COPY, PAID_BY_OTHER = range(4)
"""Kinds of what a reader reads.

The parameter as it is stored; a copy by the cheapest path; a copy that comes in a message with others; or a copy by a
path that another reader pays for."""


@dataclass(frozen=True, slots=True, eq=False)
class _Copy:
    """A variable for what a reader reads: per value the layout, the kind, and the seconds if it comes in a shared message."""

    variable: int
    layouts: NDArray[np.int64]
    kinds: NDArray[np.int64]
    seconds: NDArray[np.float64]

    @property
    def key(self) -> Hashable:
        """Identity, without the variable."""
        return self.layouts.tobytes(), self.kinds.tobytes(), self.seconds.tobytes()


class TiedParameters(ProblemParts):
    """Adds tied parameters to a problem."""

    def _tied_parameter(
        self, name: str, users: list[ClusterRead], domains: list[Domain]
    ) -> tuple[int, tuple[NdSbp, ...]]:
        """A variable for the stored layout of a parameter with several reading clusters, or with a pin."""
        table = self._stored_table(Ref(name))
        states = [state for state in table.states if state != P]
        count = len(states) ** self.boxing.mesh.ndim
        rows = np.array(list(product(range(len(states)), repeat=self.boxing.mesh.ndim)), dtype=np.int64)
        rows = rows.reshape(count, self.boxing.mesh.ndim)
        ids = table.ids(states, rows)
        rows, ids = rows[ids >= 0], ids[ids >= 0]
        pinned = self.allowed.stored.get(name) if isinstance(self.allowed, Pins) else None
        if pinned is not None:
            kept = [tuple(states[state] for state in row) == pinned for row in rows]
            rows, ids = rows[kept], ids[kept]
        key: Hashable = ("tied", id(table), pinned)
        if key not in self._costs:
            own = self.builder.unary.parameter(rows, states, Ref(name))
            self._costs[key] = ValueCosts(own.seconds, _ceil_bytes(own.memory), np.zeros(len(rows)), (own,))
        variable = self._variable(name, self._costs[key], name)
        sharing = sum(user.node.name in self.graph.differentiable for user in users)
        found: list[_Copy] = []
        for user in users:
            domain, stored, there = domains[user.cluster], ids, table
            if user.node.name not in self.graph.differentiable:
                there = self._stored_table(Ref(name), boxing_group(self.graph, user.node, user.position))
                stored = there.ids(invariant_as_replicated(tuple(states)), rows)
            wanted = there.ids(self._states(user), domain.rows)
            self.ports.setdefault(user.cluster, []).append(self._port(wanted, None))
            zone, part = self.builder.unary.zones.reads_zone(user.node.name), 1.0
            if there is table and sharing > MAX_SHARING_READERS:
                part = 1 / sharing
            owes = there is table and sharing == MAX_SHARING_READERS and len(found) == 1
            copy = self._copy_edges(variable, stored, user.cluster, wanted, there, name, zone, part, owes=owes)
            if there is table:
                found.append(copy)
        if sharing == MAX_SHARING_READERS:
            self._share_copies(*found)
        return variable, tuple(table.layouts[at] for at in ids)

    def _copy_edges(
        self,
        variable: int,
        stored: NDArray[np.int64],
        reader: int,
        wanted: NDArray[np.int64],
        table: BoxingTable,
        name: str,
        zone: str,
        part: float,
        *,
        owes: bool,
    ) -> _Copy:
        """Add the variable of what one reader reads, with edges to the stored parameter and to the reader.

        It is the parameter as stored, or a copy made once a step, which is kept with its gradient. Its values are the
        wanted layouts of each kind; those of a message shared with other parameters (ZeRO) only where one all-gather
        brings them, and those that another reader pays for only if this one ``owes`` them. The reader pays ``part`` of
        its own copies. Baselines model what other tools can run, so they make no copies."""
        copies = self.allowed is None or isinstance(self.allowed, Pins)
        layouts = unique_ints(wanted)
        weights, meta = self.builder.weights, self.graph.meta(Ref(name))
        trains = copies and table is self._stored_table(Ref(name))
        flat, gathered_s, gathers = (
            self._gathered_copies(stored, layouts, table, name, zone) if trains else _no_copies(stored)
        )
        count, owed = len(layouts), layouts if owes and copies else layouts[:0]
        read = np.concatenate([layouts, layouts, flat, owed])
        key: Hashable = (
            "copy", id(table), stored.tobytes(), layouts.tobytes(), wanted.tobytes(), copies, zone, part, len(owed),
        )  # fmt: skip
        if key not in self._costs:
            local = np.array([self._local_bytes(table.layouts[at], meta.num_bytes) for at in read])
            local[:count] = local[len(read) - len(owed) :] = 0
            gradients = weights.state * local * (meta.gradient_bytes / meta.num_bytes if meta.num_bytes else 1.0)
            kept = weights.state * local + gradients
            none = np.zeros(len(read))
            self._costs[key] = ValueCosts(none, _ceil_bytes(kept), none, (StorageCosts(none, kept, gradients, none),))
            same = stored[:, None] == layouts[None, :]
            boxed = np.where(same | (not copies), np.inf, part * weights.once * table.costs_of(stored)[:, layouts])
            brought = np.where(gathers, part * gathered_s, np.inf)
            made = [np.where(same, 0.0, np.inf), boxed, brought, np.zeros((len(stored), len(owed)))]
            self._tables["made", key] = np.concatenate(made, axis=1)
            self._tables["read", key] = np.where(read[:, None] == wanted[None, :], 0.0, np.inf)
        copy = self._variable(f"{self.names[reader]}@{name}", self._costs[key], self.anchors[reader])
        self.edges.append(Edge(variable, copy, self._tables["made", key]))
        self.edges.append(Edge(copy, reader, self._tables["read", key]))
        kinds = np.repeat(np.arange(4), [count, count, len(flat), len(owed)])
        return _Copy(copy, read, kinds, np.concatenate([np.zeros(2 * count), gathered_s, np.zeros(len(owed))]))

    def _share_copies(self, first: _Copy, other: _Copy) -> None:
        """Add an edge so that readers of one copy pay for it once, as the first reader does."""
        key: Hashable = ("shared", first.key, other.key)
        if key not in self._tables:
            both = first.layouts[:, None] == other.layouts[None, :]
            kinds, others = first.kinds[:, None], other.kinds[None, :]
            refunds = np.where(
                both & (kinds == GATHERED_COPY) & (others == GATHERED_COPY), -other.seconds[None, :], 0.0
            )
            self._tables[key] = np.where((others == PAID_BY_OTHER) & ~(both & (kinds == BOXED_COPY)), np.inf, refunds)
        if self._tables[key].any():
            self.edges.append(Edge(first.variable, other.variable, self._tables[key]))

    def _gathered_copies(
        self, stored: NDArray[np.int64], layouts: NDArray[np.int64], table: BoxingTable, name: str, zone: str
    ) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.bool_]]:
        """Layouts that one all-gather brings, its seconds, and [stored, layout] whether it starts from a stored layout."""
        leaf = next(leaf for leaf in self.graph.parameters if leaf.name == name)
        found: list[tuple[int, float, int]] = []
        for at in layouts:
            used = table.layouts[at]
            apart = sharded_layout(leaf, used, self.boxing.mesh) if P not in used else used
            if apart != used and apart in table.index:
                seconds = self.builder.unary.main_parameter_costs.gathered_s(leaf.meta, used, zone=zone)
                found.append((int(at), seconds, table.index[apart]))
        flat = np.array([at for at, _, _ in found], dtype=np.int64)
        sources = np.array([source for _, _, source in found], dtype=np.int64)
        return flat, np.array([seconds for _, seconds, _ in found]), stored[:, None] == sources[None, :]


def _ceil_bytes(memory: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.ceil(memory).astype(np.int64)


def _no_copies(stored: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.bool_]]:
    return np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros((len(stored), 0), dtype=bool)
