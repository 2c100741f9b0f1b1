"""Op clusters: the variables of a search problem (DESIGN section 8).

A cluster is an op and the views that follow its layout. None of these takes time, and a view follows only where no strategy
is lost: where nothing else reads what it views; where it has exactly one layout for each that the cluster can have, which
splits over as many devices; and where boxing costs no more behind it than before it, as it has as many bytes, and splits its
first dim where what it views is split on its first. Then a strategy in which what it views is boxed costs no less than one in
which the view is. Clusters with the same ops, attributes, shapes and wiring are of one class, and share every table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property
from math import gcd

from autosbp.errors import GraphError
from autosbp.graph.ir import Arg, DType, LogicalGraph, Node, Ref, map_arg
from autosbp.sbp.placement import Sbp
from autosbp.sbp.rules import node_options, sharding_of
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


def form_clusters(graph: LogicalGraph, counts: frozenset[int] = frozenset()) -> list[OpCluster]:
    """Clusters of a bound graph's computed nodes, in the order of their first nodes. ``counts`` are the numbers of devices over
    which dims may be split."""
    drafts: list[_Draft] = []
    reads_of = Counter(ref for node in graph.nodes for ref in node.refs())
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
        views = _viewed(graph, node)
        draft = home.get(views.name) if views is not None and reads_of[views] == 1 else None
        if draft is None or not draft.follow(node, options, known, counts):
            draft = _Draft(node, known.begun(node, options))
            drafts.append(draft)
        home[node.name] = draft
    return [OpCluster(tuple(draft.nodes), draft.options, _class_key(graph, draft.nodes, tied)) for draft in drafts]


def _viewed(graph: LogicalGraph, node: Node) -> Ref | None:
    """What a view is of; None of an op that reads more, or takes time, or makes something of another size."""
    refs = list(node.refs())
    if len(refs) != 1 or len(node.outputs) != 1 or not sharding_of(graph, node).free:
        return None
    return refs[0] if graph.meta(refs[0]).num_bytes == node.outputs[0].num_bytes else None


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

    def grown(self, cluster: Grown, member: int, index: int, options: Options, counts: frozenset[int]) -> Grown | None:
        """The options of a cluster and a view of output ``index`` of a member, if every one of the cluster's gives the view one
        that loses nothing."""
        key = (id(cluster), member, index, id(options), counts)
        if key not in self._grown:
            self._grown[key] = (cluster, options), _follow(cluster, member, index, options, counts)
        return self._grown[key][1]


def _follow(cluster: Grown, member: int, index: int, options: Options, counts: frozenset[int]) -> Grown | None:
    grown = []
    for option in cluster:
        made = option[member].outs[index]
        matches = [own for own in options if own.ins[0] == made]
        if len(matches) != 1:  # none: a boxing is needed; several: the choice is the node's own variable
            return None
        out, size = matches[0].outs[0], gcd(*(each.size for each in option))
        if made.is_split and (not out.is_split or (made.dim == 0) != (out.dim == 0)):
            return None
        if any(size % count == 0 and matches[0].size % count for count in counts):
            return None
        grown.append((*option, matches[0]))
    return tuple(grown)


class _Draft:
    def __init__(self, node: Node, options: Grown) -> None:
        self.nodes = [node]
        self.places = {node.name: 0}
        self.options = options

    def follow(self, node: Node, options: Options, known: _Known, counts: frozenset[int]) -> bool:
        """Add the view if every layout of the cluster gives it one; otherwise change nothing."""
        (ref,) = node.refs()
        grown = known.grown(self.options, self.places[ref.name], ref.index, options, counts)
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
