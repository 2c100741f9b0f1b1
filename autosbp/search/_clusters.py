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
    for node in graph.nodes:
        if node.name not in graph.computed:
            continue
        options = useful_options(graph, node)
        reads = {home[ref.name] for ref in node.refs() if ref.name in home}
        draft = next(iter(reads)) if len(reads) == 1 else None
        if draft is None or not draft.follow(node, options):
            draft = _Draft(node, options)
            drafts.append(draft)
        home[node.name] = draft
    return [
        OpCluster(tuple(draft.nodes), tuple(draft.options), _class_key(graph, draft.nodes, tied)) for draft in drafts
    ]


def names_of(cluster: OpCluster) -> frozenset[str]:
    """The cluster's ops and all that they read."""
    return frozenset(name for node in cluster.nodes for name in (node.name, *(ref.name for ref in node.refs())))


def useful_options(graph: LogicalGraph, node: Node) -> tuple[AxisOption, ...]:
    """The node's layouts less those whose only P inputs are parameters or data: making one P never helps."""
    made = [ref.name in graph.computed and ref.name not in graph.parameter_names for ref in node.refs()]
    return tuple(
        option
        for option in node_options(graph, node)
        if option.factor != "P" or any(sbp.is_partial and own for sbp, own in zip(option.ins, made, strict=True))
    )


class _Draft:
    def __init__(self, node: Node, options: tuple[AxisOption, ...]) -> None:
        if not options:
            raise GraphError(f"{node.name}.op", node.op, "an op with at least one layout is expected")
        self.nodes = [node]
        self.options: list[tuple[AxisOption, ...]] = [(option,) for option in options]

    def follow(self, node: Node, options: tuple[AxisOption, ...]) -> bool:
        """Add the node if every layout of the cluster gives it one; otherwise change nothing."""
        position = {member.name: at for at, member in enumerate(self.nodes)}
        reads = [(at, ref) for at, ref in enumerate(node.refs()) if ref.name in position]
        grown = []
        for option in self.options:
            wanted = [option[position[ref.name]].outs[ref.index] for _, ref in reads]
            matches = [own for own in options if [own.ins[at] for at, _ in reads] == wanted]
            if len(matches) != 1:  # none: a boxing is needed; several: the choice is the node's own variable
                return False
            grown.append((*option, matches[0]))
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
