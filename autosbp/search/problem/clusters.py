"""Op clusters: the variables of a search problem (DESIGN section 8).

A cluster is an op and the ops that follow its layout. An op follows when everything it reads that carries a gradient
comes from one cluster, and when it has exactly one legal layout for each layout that cluster can have. Clusters with the
same ops, attributes, shapes and wiring are of one class, and share every table.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property
from math import gcd

from autosbp.errors import GraphError
from autosbp.graph.ir import Arg, DType, LogicalGraph, Node, Ref, map_arg
from autosbp.sbp.placement import Sbp
from autosbp.sbp.rules import node_options
from autosbp.sbp.sharding import AxisOption

Options = tuple[AxisOption, ...]
"""Of one node."""
Grown = tuple[Options, ...]
"""Of a cluster: in each, the layouts of its nodes."""


@dataclass(frozen=True)
class OpCluster:
    """``options[o][k]`` is node k's layout on an axis that takes option o."""

    nodes: tuple[Node, ...]
    options: tuple[tuple[AxisOption, ...], ...]
    key: Hashable

    @property
    def name(self) -> str:
        return self.nodes[0].name

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """For each option, the extent that its axes' product must divide (0: any)."""
        found = []
        for option in self.options:
            size = 0
            for node in option:
                size = gcd(size, node.size)
            found.append(size)
        return tuple(found)

    @cached_property
    def position(self) -> dict[str, int]:
        return {node.name: at for at, node in enumerate(self.nodes)}

    def output_states(self, ref: Ref) -> tuple[Sbp, ...]:
        """The layout of a value that the cluster makes, per option."""
        at = self.position[ref.name]
        return tuple(option[at].outs[ref.index] for option in self.options)

    def input_states(self, node: str, position: int) -> tuple[Sbp, ...]:
        """The layout that a node of the cluster needs of its argument, per option."""
        at = self.position[node]
        return tuple(option[at].ins[position] for option in self.options)


def form_clusters(graph: LogicalGraph) -> list[OpCluster]:
    """Clusters of a bound graph's computed nodes, in the order of their first nodes."""
    drafts: list[_Draft] = []
    home: dict[str, _Draft] = {}
    parameter_uses: dict[str, int] = {}
    for node in graph.nodes:
        for ref in set(node.refs()):
            parameter_uses[ref.name] = parameter_uses.get(ref.name, 0) + 1
    tied = {name for name in graph.parameter_names if parameter_uses.get(name, 0) > 1}
    known = _Known()
    for node in graph.nodes:
        if node.name not in graph.computed:
            continue
        options = known.useful(graph, node)
        reads = {home[ref.name] for ref in node.refs() if ref.name in home}
        draft = next(iter(reads)) if len(reads) == 1 else None
        if draft is None or not draft.follow(node, options, known):
            draft = _Draft(node, known.begun(node, options))
            drafts.append(draft)
        home[node.name] = draft
    return [OpCluster(tuple(draft.nodes), draft.options, _class_key(graph, draft.nodes, tied)) for draft in drafts]


def names_of(cluster: OpCluster) -> frozenset[str]:
    """The cluster's ops and all that they read."""
    return frozenset(name for node in cluster.nodes for name in (node.name, *(ref.name for ref in node.refs())))


def useful_options(graph: LogicalGraph, node: Node) -> tuple[AxisOption, ...]:
    """The node's layouts less those whose only P inputs are parameters or data: making one P never helps."""
    return _useful(node_options(graph, node), _made(graph, node))


def _made(graph: LogicalGraph, node: Node) -> tuple[bool, ...]:
    """Which inputs are neither parameters nor data."""
    return tuple(ref.name in graph.computed and ref.name not in graph.parameter_names for ref in node.refs())


def _useful(options: Options, made: tuple[bool, ...]) -> Options:
    return tuple(
        option
        for option in options
        if option.factor != "P" or any(sbp.is_partial and own for sbp, own in zip(option.ins, made, strict=True))
    )


class _Known:
    """What nodes that are alike have in common: their options, and how clusters grow by them. Options are told apart by
    identity: those of like ops are one object (``sbp.sharding.axis_options``)."""

    def __init__(self) -> None:
        self._useful: dict[tuple[int, tuple[bool, ...]], tuple[Options, Options]] = {}
        self._begun: dict[int, tuple[Options, Grown]] = {}
        self._grown: dict[Hashable, tuple[object, Grown | None]] = {}

    def useful(self, graph: LogicalGraph, node: Node) -> Options:
        options, made = node_options(graph, node), _made(graph, node)
        key = (id(options), made)
        if key not in self._useful:
            self._useful[key] = options, _useful(options, made)  # kept alive, so that no others have their id
        return self._useful[key][1]

    def begun(self, node: Node, options: Options) -> Grown:
        """The options of a cluster of one node."""
        if not options:
            raise GraphError(f"{node.name}.op", node.op, "an op with at least one layout is expected")
        if id(options) not in self._begun:
            self._begun[id(options)] = options, tuple((option,) for option in options)
        return self._begun[id(options)][1]

    def grown(self, cluster: Grown, reads: tuple[tuple[int, int, int], ...], options: Options) -> Grown | None:
        """The options of a cluster and a node that reads it, if every one of the cluster's gives the node one; ``reads`` are
        the node's argument, the member and its output."""
        key = (id(cluster), reads, id(options))
        if key not in self._grown:
            self._grown[key] = (cluster, options), _follow(cluster, reads, options)
        return self._grown[key][1]


def _follow(cluster: Grown, reads: tuple[tuple[int, int, int], ...], options: Options) -> Grown | None:
    grown = []
    for option in cluster:
        wanted = [option[member].outs[index] for _, member, index in reads]
        matches = [own for own in options if [own.ins[at] for at, _, _ in reads] == wanted]
        if len(matches) != 1:  # none: a boxing is needed; several: the choice is the node's own variable
            return None
        grown.append((*option, matches[0]))
    return tuple(grown)


class _Draft:
    def __init__(self, node: Node, options: Grown) -> None:
        self.nodes = [node]
        self.places = {node.name: 0}
        self.options = options

    def follow(self, node: Node, options: Options, known: _Known) -> bool:
        """Add the node if every layout of the cluster gives it one; otherwise change nothing."""
        reads = tuple(
            (at, self.places[ref.name], ref.index) for at, ref in enumerate(node.refs()) if ref.name in self.places
        )
        grown = known.grown(self.options, reads, options)
        if grown is None:
            return False
        self.places[node.name] = len(self.nodes)
        self.nodes.append(node)
        self.options = grown
        return True


def _class_key(graph: LogicalGraph, nodes: list[Node], tied: set[str]) -> Hashable:
    position = {node.name: at for at, node in enumerate(nodes)}
    external: dict[Ref, int] = {}

    def encode(arg: Arg) -> Hashable:
        if isinstance(arg, Ref):
            if arg.name in position:
                return ("made", position[arg.name], arg.index)
            if arg.name in graph.parameter_names:
                return ("parameter", graph.meta(arg), arg.name in tied)
            if arg.name not in graph.computed:
                return ("data", graph.meta(arg))
            return ("read", graph.meta(arg), graph.has_gradient(arg), external.setdefault(arg, len(external)))
        return ("dtype", arg.name) if isinstance(arg, DType) else (type(arg).__name__, arg)

    return tuple(
        (
            node.op,
            node.rule,
            tuple(map_arg(arg, encode) for arg in node.args),
            tuple((key, map_arg(arg, encode)) for key, arg in sorted(node.kwargs.items())),
            node.outputs,
            node.name == graph.loss.name,
        )
        for node in nodes
    )
