"""The chunks that a pipeline cuts a graph into: each is a graph of a part of the ops.

An op that depends on a parameter belongs to the chunk given by its position in the program. Values that depend on none
(labels, masks, positions) are recomputed from the batch by each chunk that reads them. Every other value is sent from
chunk to chunk, passing through chunks in between that do not read it.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from autosbp.errors import InputError
from autosbp.graph.ir import Arg, DType, LogicalGraph, Node, Ref, TensorMeta, map_arg
from autosbp.utils.hashed_key import HashedKey

MAX_CACHED_CUTS = 16
"""Number of cuts of a graph whose chunks are cached."""


@dataclass(frozen=True)
class ChunkGraph(LogicalGraph):
    """A part of the graph ``whole``, which determines data values and gradients.

    ``received`` come from the previous chunk; ``results`` are sent to the next one. The last chunk has no ``results``,
    only the loss.
    """

    whole: LogicalGraph = field(kw_only=True)

    @property
    def cache(self) -> dict[Hashable, Any]:
        return self.whole.cache

    @cached_property
    def metas(self) -> Mapping[str, tuple[TensorMeta, ...]]:
        return self.whole.metas

    @cached_property
    def high(self) -> int:
        return self.whole.high

    @cached_property
    def parameter_dependent(self) -> frozenset[str]:
        return self.whole.parameter_dependent

    @cached_property
    def constant_names(self) -> frozenset[str]:
        return self.whole.constant_names

    @cached_property
    def differentiable(self) -> frozenset[str]:
        return self.whole.differentiable

    @cached_property
    def positions(self) -> Mapping[str, int]:
        return self.whole.positions

    @cached_property
    def structural_key(self) -> tuple[Mapping[str, int], HashedKey]:
        """Numbers of the chunk's names, and a key of its computation, equal for chunks that differ in names only."""
        numbers: dict[str, int] = {}

        def number(name: str) -> int:
            return numbers.setdefault(name, len(numbers))

        def place(arg: Arg) -> Hashable:
            if isinstance(arg, Ref):
                return (number(arg.name), arg.index)
            return ("dtype", arg.name) if isinstance(arg, DType) else (type(arg).__name__, arg)

        received = tuple(
            (number(ref.name), ref.index, self.meta(ref), self.has_gradient(ref)) for ref in self.received_refs
        )
        nodes = tuple(
            (
                number(node.name), node.op, node.rule, node.outputs, tuple(map_arg(arg, place) for arg in node.args),
                tuple((key, map_arg(arg, place)) for key, arg in sorted(node.kwargs.items())),
                node.name in self.differentiable,
            )
            for node in self.nodes
        )  # fmt: skip
        parameters = tuple((number(leaf.name), leaf.meta, leaf.trained) for leaf in self.parameters)
        data = tuple((number(leaf.name), leaf.meta) for leaf in self.data)
        results = tuple((number(ref.name), ref.index) for ref in self.results)
        return numbers, HashedKey((received, nodes, parameters, data, results))

    def bind(self, **values: int) -> ChunkGraph:
        """Return the chunk itself, because the whole graph is already bound; raise ``InputError`` for a symbol."""
        if values:
            raise InputError("symbols", sorted(values), "expected none: the graph of a chunk is already bound")
        return self


def cut_graph(graph: LogicalGraph, cuts: Sequence[str]) -> tuple[ChunkGraph, ...]:
    """Cut a bound graph into pipeline chunks; the chunks of the last ``MAX_CACHED_CUTS`` cuts are cached with the graph.

    Args:
        graph: the bound graph.
        cuts: the first op of each chunk but the first.

    Raises:
        InputError: for cuts that are not ops, that depend on no parameter, or that are out of order.
    """
    known: dict[tuple[str, ...], tuple[ChunkGraph, ...]] = graph.cache.setdefault("chunks", {})
    key = tuple(cuts)
    chunks = known.get(key)
    if chunks is None:
        chunks = _cut(graph, key)
        for oldest in list(known)[: len(known) + 1 - MAX_CACHED_CUTS]:
            known.pop(oldest, None)
        known[key] = chunks
    return chunks


def _cut(graph: LogicalGraph, cuts: Sequence[str]) -> tuple[ChunkGraph, ...]:
    homes = _chunk_of_op(graph, cuts)
    last_use = {graph.loss: len(cuts)}
    for node in graph.nodes:
        if node.name in homes:
            for ref in node.refs():
                if ref.name in homes:
                    last_use[ref] = max(last_use.get(ref, 0), homes[node.name])
    made = [Ref(node.name, index) for node in graph.nodes if node.name in homes for index in range(len(node.outputs))]
    crossing: list[list[Ref]] = [[] for _ in cuts]
    for ref in made:
        for chunk in range(homes[ref.name], last_use.get(ref, -1)):
            crossing[chunk].append(ref)
    read = {ref.name for node in graph.nodes for ref in node.refs()}
    unread = {leaf.name for leaf in graph.parameters} - read
    members: list[list[Node]] = [[] for _ in range(len(cuts) + 1)]
    for node in graph.nodes:
        if node.name in homes:
            members[homes[node.name]].append(node)
    data = {node.name: node for node in graph.nodes if node.name not in homes}
    return tuple(
        _chunk(graph, chunk, nodes, data, unread if chunk == 0 else set(), tuple(received), tuple(sent))
        for chunk, (nodes, received, sent) in enumerate(zip(members, ((), *crossing), (*crossing, ()), strict=True))
    )


def _chunk_of_op(graph: LogicalGraph, cuts: Sequence[str]) -> dict[str, int]:
    """The chunk of every op that depends on a parameter."""
    for at, cut in enumerate(cuts):
        field_name = f"strategy.pipeline.cuts[{at}]"
        if cut not in graph.positions:
            raise InputError(field_name, cut, "expected the name of an op of the graph")
        if cut not in graph.parameter_dependent:
            raise InputError(field_name, cut, "expected an op that depends on a parameter")
        if at and graph.positions[cut] <= graph.positions[cuts[at - 1]]:
            raise InputError(field_name, cut, f"expected an op after {cuts[at - 1]}")
    homes: dict[str, int] = {}
    chunk = 0
    for node in graph.nodes:
        if node.name in graph.parameter_dependent:
            chunk += chunk < len(cuts) and node.name == cuts[chunk]
            homes[node.name] = chunk
    if not cuts or next(iter(homes)) != cuts[0]:
        return homes
    raise InputError(
        "strategy.pipeline.cuts[0]", cuts[0], "expected an op after the first one that depends on a parameter"
    )


def _chunk(
    graph: LogicalGraph,
    chunk: int,
    members: Sequence[Node],
    data: Mapping[str, Node],
    unread: set[str],
    received: tuple[Ref, ...],
    sent: tuple[Ref, ...],
) -> ChunkGraph:
    needed = {ref.name for node in members for ref in node.refs()} | unread
    made: dict[str, Node] = {}
    waiting = [name for name in needed if name in data]
    while waiting:
        name = waiting.pop()
        if name not in made:
            made[name] = data[name]
            reads = {ref.name for ref in data[name].refs()}
            needed |= reads
            waiting += [ref for ref in reads if ref in data]
    nodes = sorted((*made.values(), *members), key=lambda node: graph.positions[node.name])
    return ChunkGraph(
        name=f"{graph.name}.{chunk}",
        symbols={},
        parameters=tuple(leaf for leaf in graph.parameters if leaf.name in needed),
        inputs=tuple(leaf for leaf in graph.inputs if leaf.name in needed),
        constants=tuple(leaf for leaf in graph.constants if leaf.name in needed),
        nodes=tuple(nodes),
        loss=graph.loss,
        provenance=graph.provenance,
        rules=graph.rules,
        functions=graph.functions,
        results=sent,
        received_refs=received,
        whole=graph,
    )
