"""What does not depend on the mesh: clusters of a bound graph, who reads what, and which clusters are alike."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from autosbp.graph.ir import LogicalGraph, Node, Ref
from autosbp.sbp.groups import boxing_group, sends_gradient
from autosbp.search.problem.clusters import OpCluster, form_clusters, names_of
from autosbp.search.problem.zones import Zones


@dataclass(frozen=True)
class Read:
    """One read by a cluster: which node, at which argument."""

    cluster: int
    node: Node
    position: int


@dataclass(frozen=True, slots=True)
class Joint:
    """A made value and its external ``reads`` in one boxing group, ``label``. Joints of one ``kind`` have makers and readers
    of the same classes that meet in the same way: what one costs, all do."""

    ref: Ref
    label: str
    maker: int
    reads: tuple[Read, ...]
    kind: int


@dataclass(frozen=True)
class ClusterClass:
    """Clusters with equal costs: one of them, how many there are, the parameters that only it reads, and the boxed values
    that another variable carries the memory of."""

    cluster: OpCluster
    count: int
    own: frozenset[str]
    carried: frozenset[Ref]


class Analysis:
    """``values[ref][label]`` are the external reads of a made value by boxing group; ``parameters[name]`` those of a
    parameter; ``class_of[i]`` is the index in ``classes`` of cluster i. No two clusters are alike of which one has a name
    among ``pinned``, ops or parameters; no cluster owns a parameter among ``stored``. ``again`` are ops that are recomputed,
    with the number of their run, and ``handed`` the values that runs read from elsewhere. ``zones`` tell
    where ops are in a pass, ``counts`` over how many devices dims may be split. ``like`` is of the same graph, with other runs:
    its clusters are these."""

    def __init__(
        self,
        graph: LogicalGraph,
        pinned: frozenset[str] = frozenset(),
        stored: frozenset[str] = frozenset(),
        again: Mapping[str, int] | None = None,
        like: Analysis | None = None,
        zones: Zones | None = None,
        counts: frozenset[int] = frozenset(),
    ) -> None:
        self.zones = Zones() if zones is None else zones
        self.graph, self.pinned, self.stored, self.again = graph, pinned, stored, again or {}
        made = graph.computed - graph.parameter_names
        self.handed = frozenset(
            ref
            for node in graph.nodes
            if node.name in self.again
            for ref in node.refs()
            if ref.name in made and self.again.get(ref.name) != self.again[node.name]
        )
        self.clusters: list[OpCluster] = form_clusters(graph, counts) if like is None else like.clusters
        self.home = {node.name: at for at, cluster in enumerate(self.clusters) for node in cluster.nodes}
        self.values: dict[Ref, dict[str, list[Read]]] = {} if like is None else like.values
        self.parameters: dict[str, list[Read]] = {} if like is None else like.parameters
        if like is None:
            self._find_reads()
        self.class_of, self.classes = self._find_classes()
        self.joints = self._find_joints()

    def _find_joints(self) -> tuple[Joint, ...]:
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
                found.append(Joint(ref, label, maker, tuple(users), kinds.setdefault(key, len(kinds))))
        return tuple(found)

    def _place(self, read: Read) -> tuple[int, int, int]:
        """Which input of which op of which class of clusters."""
        at = self.clusters[read.cluster].position[read.node.name]
        return self.class_of[read.cluster], at, read.position

    def _find_reads(self) -> None:
        for at, cluster in enumerate(self.clusters):
            for node in cluster.nodes:
                for position, ref in enumerate(node.refs()):
                    read = Read(at, node, position)
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
            key = (cluster.key, places, names_of(cluster) & self.pinned, self._runs(cluster), self._zones(cluster))
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

    def _zones(self, cluster: OpCluster) -> Hashable:
        """Where its ops are, which makes a part of its costs."""
        return tuple((self.zones.of_op(node.name), self.zones.of_reads(node.name)) for node in cluster.nodes)

    def _runs(self, cluster: OpCluster) -> Hashable:
        """What recomputation makes of the cluster's costs."""
        if not self.again:
            return None
        return tuple(
            (
                node.name in self.again,
                [Ref(node.name, at) in self.handed for at in range(len(node.outputs))].count(True),
            )
            for node in cluster.nodes
        )


def _places(cluster: OpCluster, own: set[str], carried: set[Ref]) -> Hashable:
    """Where the cluster reads what it owns and what is carried: part of what makes two clusters' costs equal."""
    return tuple(
        (at, position, ref.name in own)
        for at, node in enumerate(cluster.nodes)
        for position, ref in enumerate(node.refs())
        if ref.name in own or ref in carried
    )
