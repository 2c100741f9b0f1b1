"""Mesh-independent analysis of a bound graph: clusters, readers of each value, and clusters with equal costs."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from autosbp.graph.ir import LogicalGraph, Node, Ref
from autosbp.program.shared_boxing import boxing_group, sends_gradient
from autosbp.search.problem.op_clusters import OpCluster, form_clusters, names_of
from autosbp.search.problem.overlap_zones import OverlapZones


@dataclass(frozen=True)
class ClusterRead:
    """One read by a cluster: the node and its argument position."""

    cluster: int
    node: Node
    position: int


@dataclass(frozen=True, slots=True)
class BoxedValue:
    """A computed value and its external ``reads`` in one boxing group, ``label``.

    Values of one ``kind`` have makers and readers of the same classes, wired in the same way, so their boxing costs the
    same."""

    ref: Ref
    label: str
    producer: int
    reads: tuple[ClusterRead, ...]
    kind: int


@dataclass(frozen=True)
class ClusterClass:
    """Clusters with equal costs.

    ``cluster`` is one of them and ``count`` their number. ``own`` are the parameters that only it reads; ``carried``
    the boxed values whose memory another variable counts."""

    cluster: OpCluster
    count: int
    own: frozenset[str]
    shared_reads: frozenset[Ref]


class GraphAnalysis:
    """Clusters, reads and classes of a bound graph.

    ``values[ref][label]`` are the external reads of a computed value by boxing group; ``parameters[name]`` those of a
    parameter; ``class_of[i]`` is the index in ``classes`` of cluster i. ``handed`` are the values that checkpointed
    segments read from elsewhere.

    Args:
        pinned: ops and parameters with a fixed layout; clusters that differ in these names are of different classes.
        stored: parameters that no cluster owns, as their stored layout is a variable.
        again: checkpointed ops, with the number of their segment.
        like: an analysis of the same graph with other segments, whose clusters and reads are reused.
        zones: positions of ops in a pass.
        counts: numbers of devices over which dims may be split.
    """

    def __init__(
        self,
        graph: LogicalGraph,
        pinned: frozenset[str] = frozenset(),
        stored: frozenset[str] = frozenset(),
        again: Mapping[str, int] | None = None,
        like: GraphAnalysis | None = None,
        zones: OverlapZones | None = None,
        counts: frozenset[int] = frozenset(),
    ) -> None:
        self.zones = OverlapZones() if zones is None else zones
        self.graph, self.pinned, self.stored, self.again = graph, pinned, stored, again or {}
        made = graph.parameter_dependent - graph.parameter_names
        self.segment_inputs = frozenset(
            ref
            for node in graph.nodes
            if node.name in self.again
            for ref in node.refs()
            if ref.name in made and self.again.get(ref.name) != self.again[node.name]
        )
        self.clusters: list[OpCluster] = form_clusters(graph, counts) if like is None else like.clusters
        self.home = {node.name: at for at, cluster in enumerate(self.clusters) for node in cluster.nodes}
        self.values: dict[Ref, dict[str, list[ClusterRead]]] = {} if like is None else like.values
        self.parameters: dict[str, list[ClusterRead]] = {} if like is None else like.parameters
        if like is None:
            self._find_reads()
        self.class_of, self.classes = self._find_classes()
        self.boxed_values = self._find_boxed_values()

    def _find_boxed_values(self) -> tuple[BoxedValue, ...]:
        kinds: dict[Hashable, int] = {}
        found = []
        for ref, groups in self.values.items():
            maker = self.home[ref.name]
            made = (self.class_of[maker], self.clusters[maker].position[ref.name], ref.index)
            meta, gradient = self.graph.meta(ref), self.graph.has_gradient(ref)
            for label, users in groups.items():
                places = tuple(self._place(user) for user in users)
                again = users[0].node.name in self.again
                key = (made, meta, gradient, sends_gradient(label), again, places)
                found.append(BoxedValue(ref, label, maker, tuple(users), kinds.setdefault(key, len(kinds))))
        return tuple(found)

    def _place(self, read: ClusterRead) -> tuple[int, int, int]:
        """Class of the reading cluster, index of its op, and input position."""
        at = self.clusters[read.cluster].position[read.node.name]
        return self.class_of[read.cluster], at, read.position

    def _find_reads(self) -> None:
        for at, cluster in enumerate(self.clusters):
            for node in cluster.nodes:
                for position, ref in enumerate(node.refs()):
                    read = ClusterRead(at, node, position)
                    if ref.name in self.graph.parameter_names:
                        self.parameters.setdefault(ref.name, []).append(read)
                    elif self.home.get(ref.name, at) != at:
                        label = boxing_group(self.graph, node, position)
                        self.values.setdefault(ref, {}).setdefault(label, []).append(read)

    def _find_classes(self) -> tuple[list[int], list[ClusterClass]]:
        own: list[set[str]] = [set() for _ in self.clusters]
        carried: list[set[Ref]] = [set() for _ in self.clusters]
        for name, users in self.parameters.items():
            if len(users) == 1 and name not in self.stored:
                own[users[0].cluster].add(name)
        for ref, groups in self.values.items():
            for users in groups.values():
                for user in users if len(users) > 1 else ():
                    carried[user.cluster].add(ref)
        index: dict[Hashable, int] = {}
        counts: list[int] = []
        class_of: list[int] = []
        first: list[int] = []
        for at, cluster in enumerate(self.clusters):
            places = _places(cluster, own[at], carried[at])
            key = (
                cluster.key,
                places,
                names_of(cluster) & self.pinned,
                self._checkpointing_key(cluster),
                self._zones_key(cluster),
            )
            if key not in index:
                index[key] = len(counts)
                counts.append(0)
                first.append(at)
            class_of.append(index[key])
            counts[index[key]] += 1
        classes = [
            ClusterClass(self.clusters[at], count, frozenset(own[at]), frozenset(carried[at]))
            for at, count in zip(first, counts, strict=True)
        ]
        return class_of, classes

    def _zones_key(self, cluster: OpCluster) -> Hashable:
        """Zones of the cluster's ops and reads, on which its costs depend."""
        return tuple((self.zones.op_zone(node.name), self.zones.reads_zone(node.name)) for node in cluster.nodes)

    def _checkpointing_key(self, cluster: OpCluster) -> Hashable:
        """What the cluster's costs depend on under activation checkpointing."""
        if not self.again:
            return None
        return tuple(
            (
                node.name in self.again,
                [Ref(node.name, at) in self.segment_inputs for at in range(len(node.outputs))].count(True),
            )
            for node in cluster.nodes
        )


def _places(cluster: OpCluster, own: set[str], carried: set[Ref]) -> Hashable:
    """Where the cluster reads its own parameters and carried values; clusters of a class agree in it."""
    return tuple(
        (at, position, ref.name in own)
        for at, node in enumerate(cluster.nodes)
        for position, ref in enumerate(node.refs())
        if ref.name in own or ref in carried
    )
