"""Op clusters: the variables of a search problem.

A cluster is an op and the views that follow its layout. Views take no time. A view joins a cluster only if that loses
no strategy, which needs all of these:

- nothing else reads its input;
- for each layout of the cluster the view has exactly one layout, which splits over as many devices;
- boxing after the view costs no more than before it: the view has as many bytes, and splits its first dim if its input
  is split on its first.

Then a strategy that boxes the view's input costs no less than one that boxes the view. Clusters with the same ops,
attributes, shapes and wiring are of one class and share every table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property
from math import gcd

from autosbp.errors import GraphError
from autosbp.graph.ir import Arg, DType, LogicalGraph, Node, Ref, map_arg
from autosbp.sbp.factor_notation import AxisOption
from autosbp.sbp.layout import Sbp
from autosbp.sbp.rules import node_options, sharding_of

Options = tuple[AxisOption, ...]
"""Layouts of one node."""
ClusterOptions = tuple[Options, ...]
"""Options of a cluster: in each, the layouts of its nodes."""


@dataclass(frozen=True)
class OpCluster:
    """Nodes that share one choice of layout; ``options[o][k]`` is node k's layout on an axis with option o."""

    nodes: tuple[Node, ...]
    options: tuple[tuple[AxisOption, ...], ...]
    key: Hashable

    @property
    def name(self) -> str:
        return self.nodes[0].name

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Per option, the extent that the product of its axes must divide (0: any)."""
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
        """Layout of an output of the cluster, per option."""
        at = self.position[ref.name]
        return tuple(option[at].outs[ref.index] for option in self.options)

    def input_states(self, node: str, position: int) -> tuple[Sbp, ...]:
        """Layout in which a node of the cluster reads an argument, per option."""
        at = self.position[node]
        return tuple(option[at].ins[position] for option in self.options)


def form_clusters(graph: LogicalGraph, counts: frozenset[int] = frozenset()) -> list[OpCluster]:
    """Clusters of a bound graph's computed nodes, in the order of their first nodes.

    Args:
        counts: numbers of devices over which dims may be split.
    """
    drafts: list[_ClusterDraft] = []
    reads_of = Counter(ref for node in graph.nodes for ref in node.refs())
    home: dict[str, _ClusterDraft] = {}
    parameter_uses: dict[str, int] = {}
    for node in graph.nodes:
        for ref in set(node.refs()):
            parameter_uses[ref.name] = parameter_uses.get(ref.name, 0) + 1
    tied = {name for name in graph.parameter_names if parameter_uses.get(name, 0) > 1}
    known = _OptionCache()
    for node in graph.nodes:
        if node.name not in graph.parameter_dependent:
            continue
        options = known.useful(graph, node)
        views = _view_input(graph, node)
        draft = home.get(views.name) if views is not None and reads_of[views] == 1 else None
        if draft is None or not draft.follow(node, options, known, counts):
            draft = _ClusterDraft(node, known.begun(node, options))
            drafts.append(draft)
        home[node.name] = draft
    return [OpCluster(tuple(draft.nodes), draft.options, _class_key(graph, draft.nodes, tied)) for draft in drafts]


def _view_input(graph: LogicalGraph, node: Node) -> Ref | None:
    """Input of a view; None if the op reads more, takes time, or changes the number of bytes."""
    refs = list(node.refs())
    if len(refs) != 1 or len(node.outputs) != 1 or not sharding_of(graph, node).free:
        return None
    return refs[0] if graph.meta(refs[0]).num_bytes == node.outputs[0].num_bytes else None


def names_of(cluster: OpCluster) -> frozenset[str]:
    """Names of the cluster's ops and of all that they read."""
    return frozenset(name for node in cluster.nodes for name in (node.name, *(ref.name for ref in node.refs())))


def useful_options(graph: LogicalGraph, node: Node) -> tuple[AxisOption, ...]:
    """The node's layouts, except those whose only P inputs are parameters or data: making these P never helps."""
    return _useful(node_options(graph, node), _is_computed_input(graph, node))


def _is_computed_input(graph: LogicalGraph, node: Node) -> tuple[bool, ...]:
    """Per input, whether it is neither a parameter nor data."""
    return tuple(ref.name in graph.parameter_dependent and ref.name not in graph.parameter_names for ref in node.refs())


def _useful(options: Options, made: tuple[bool, ...]) -> Options:
    return tuple(
        option
        for option in options
        if option.factor != "P" or any(sbp.is_partial and own for sbp, own in zip(option.ins, made, strict=True))
    )


class _OptionCache:
    """Cache of options and growth steps of equal nodes.

    Options are identified by object identity: equal ops share one object (``sbp.factor_notation.axis_options``)."""

    def __init__(self) -> None:
        self._useful: dict[tuple[int, tuple[bool, ...]], tuple[Options, Options]] = {}
        self._begun: dict[int, tuple[Options, ClusterOptions]] = {}
        self._grown: dict[Hashable, tuple[object, ClusterOptions | None]] = {}

    def useful(self, graph: LogicalGraph, node: Node) -> Options:
        options, made = node_options(graph, node), _is_computed_input(graph, node)
        key = (id(options), made)
        if key not in self._useful:
            self._useful[key] = options, _useful(options, made)  # kept alive, so that no other object gets its id
        return self._useful[key][1]

    def begun(self, node: Node, options: Options) -> ClusterOptions:
        """Options of a cluster of one node."""
        if not options:
            raise GraphError(f"{node.name}.op", node.op, "expected an op with at least one layout")
        if id(options) not in self._begun:
            self._begun[id(options)] = options, tuple((option,) for option in options)
        return self._begun[id(options)][1]

    def grown(
        self, cluster: ClusterOptions, member: int, index: int, options: Options, counts: frozenset[int]
    ) -> ClusterOptions | None:
        """Options of a cluster plus a view of output ``index`` of a member; None if some option gives it no lossless layout."""
        key = (id(cluster), member, index, id(options), counts)
        if key not in self._grown:
            self._grown[key] = (cluster, options), _extend_options(cluster, member, index, options, counts)
        return self._grown[key][1]


def _extend_options(
    cluster: ClusterOptions, member: int, index: int, options: Options, counts: frozenset[int]
) -> ClusterOptions | None:
    grown = []
    for option in cluster:
        made = option[member].outs[index]
        matches = [own for own in options if own.ins[0] == made]
        if len(matches) != 1:  # none: the view needs boxing; several: the choice is a variable of its own
            return None
        out, size = matches[0].outs[0], gcd(*(each.size for each in option))
        if made.is_split and (not out.is_split or (made.dim == 0) != (out.dim == 0)):
            return None
        if any(size % count == 0 and matches[0].size % count for count in counts):
            return None
        grown.append((*option, matches[0]))
    return tuple(grown)


class _ClusterDraft:
    def __init__(self, node: Node, options: ClusterOptions) -> None:
        self.nodes = [node]
        self.places = {node.name: 0}
        self.options = options

    def follow(self, node: Node, options: Options, known: _OptionCache, counts: frozenset[int]) -> bool:
        """Add the view if every option of the cluster gives it a layout; otherwise change nothing."""
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
            if arg.name not in graph.parameter_dependent:
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
