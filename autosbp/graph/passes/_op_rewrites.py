"""Rewriting of single ops: a table from op to a function that builds its replacement."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod

from autosbp.graph.ir import Arg, DType, LogicalGraph, Node, Ref, Sym, TensorMeta
from autosbp.graph.passes._graph_edits import rebuild, substitute

Shape = tuple[int | str, ...]


class NodeBuilder:
    """Creates nodes, in order, with unused names. Shape methods return their source if nothing changes."""

    def __init__(self, metas: dict[str, tuple[TensorMeta, ...]], node: Node) -> None:
        self.metas, self.node = metas, node
        self.nodes: list[Node] = []

    def meta(self, ref: Ref) -> TensorMeta:
        return self.metas[ref.name][ref.index]

    def shape(self, ref: Ref) -> Shape:
        return self.meta(ref).shape

    def op(
        self, op: str, *args: Arg, shape: Sequence[int | str], dtype: str, kwargs: Mapping[str, Arg] | None = None
    ) -> Ref:
        """Append a node ``aten.{op}`` with one output."""
        return self.node_with((TensorMeta(tuple(shape), dtype),), op, args, kwargs or {})

    def node_with(
        self, outputs: tuple[TensorMeta, ...], op: str, args: tuple[Arg, ...], kwargs: Mapping[str, Arg] | None = None
    ) -> Ref:
        """Append a node ``aten.{op}`` with these outputs; refers to the first one."""
        at = len(self.nodes)
        while (name := f"{self.node.name}.{at}") in self.metas:
            at += 1
        made = Node(name, f"aten.{op}", args, kwargs or {}, outputs)
        self.nodes.append(made)
        self.metas[name] = made.outputs
        return Ref(name)

    def same(self, op: str, source: Ref, *args: Arg, dtype: str | None = None) -> Ref:
        """Append an op on ``source`` that keeps its shape and, by default, its dtype."""
        return self.op(op, source, *args, shape=self.shape(source), dtype=dtype or self.meta(source).dtype)

    def reshape(self, source: Ref, shape: Shape) -> Ref:
        if self.shape(source) == shape:
            return source
        return self.op("reshape.default", source, sizes(shape), shape=shape, dtype=self.meta(source).dtype)

    def expand(self, source: Ref, shape: Shape) -> Ref:
        if self.shape(source) == shape:
            return source
        return self.op("expand.default", source, sizes(shape), shape=shape, dtype=self.meta(source).dtype)

    def permute(self, source: Ref, order: Sequence[int]) -> Ref:
        if list(order) == list(range(len(order))):
            return source
        before = self.shape(source)
        shape = [before[dim] for dim in order]
        return self.op("permute.default", source, tuple(order), shape=shape, dtype=self.meta(source).dtype)

    def slice(self, source: Ref, dim: int, start: int, stop: int) -> Ref:
        """``source`` from ``start`` to ``stop`` along ``dim``."""
        before = self.shape(source)
        shape = (*before[:dim], stop - start, *before[dim + 1 :])
        return self.op("slice.Tensor", source, dim, start, stop, 1, shape=shape, dtype=self.meta(source).dtype)

    def cat(self, parts: Sequence[Ref], dim: int, size: int | str) -> Ref:
        """Concatenate ``parts`` along ``dim``; ``size`` is their total size there."""
        before = self.shape(parts[0])
        shape = (*before[:dim], size, *before[dim + 1 :])
        return self.op("cat.default", tuple(parts), dim, shape=shape, dtype=self.meta(parts[0]).dtype)

    def cast(self, source: Ref, dtype: str) -> Ref:
        if self.meta(source).dtype == dtype:
            return source
        return self.op("to.dtype", source, DType(dtype), shape=self.shape(source), dtype=dtype)


def sizes(shape: Sequence[int | str]) -> tuple[Arg, ...]:
    """A shape as an argument of an op."""
    return tuple(dim if isinstance(dim, int) else Sym(dim) for dim in shape)


def count(shape: Sequence[int | str]) -> int | Sym | None:
    """The number of elements as an argument of an op; None if a size is a sum of symbols."""
    known = [dim for dim in shape if isinstance(dim, int)]
    if len(known) == len(shape):
        return prod(known)
    return None if any("+" in str(dim) for dim in shape) else Sym("*".join(str(dim) for dim in shape))


def argument(node: Node, position: int, default: Arg = None, name: str = "") -> Arg:
    """The argument at ``position``, or by ``name``, or ``default``."""
    if len(node.args) > position:
        return node.args[position]
    return node.kwargs.get(name, default)


Rewrite = Callable[[NodeBuilder, Node], Ref | tuple[Ref, ...] | None]
"""Builds the replacement of a node: one value for each of its outputs, or None to keep the node."""


def rewrite(graph: LogicalGraph, changes: Mapping[str, Rewrite]) -> LogicalGraph:
    """Replace every node whose op is in ``changes`` by the result of its function."""
    if not any(node.op in changes for node in graph.nodes):
        return graph
    metas = dict(graph.metas)
    table: dict[Ref, Ref] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        change = changes.get(node.op)
        if change is None:
            nodes.append(node)
            continue
        node = node.map_args(lambda arg: substitute(arg, table))
        builder = NodeBuilder(metas, node)
        made = change(builder, node)
        if made is None:
            nodes.append(node)
            continue
        if isinstance(made, Ref) and builder.nodes and builder.nodes[-1].name == made.name:
            builder.nodes[-1] = replace(builder.nodes[-1], name=node.name)  # the value keeps its name
        else:
            made = made if isinstance(made, tuple) else (made,)
            table.update((Ref(node.name, index), ref) for index, ref in enumerate(made))
        nodes += builder.nodes
    return rebuild(replace(graph, nodes=tuple(nodes)), nodes, table)
