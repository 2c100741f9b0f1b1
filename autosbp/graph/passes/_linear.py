"""Canonicalise linear layers to ``linear(x, w, b)`` on the unflattened input."""

from __future__ import annotations

from dataclasses import replace

from autosbp.graph.ir import LogicalGraph, Node, Parameter, Ref, TensorMeta
from autosbp.graph.passes._graph_edits import consumers, producers, rebuild


def view_addmm_to_linear(graph: LogicalGraph) -> LogicalGraph:
    """Replace ``reshape(addmm(b, reshape(x), w))`` (GPT-2's Conv1D) by ``linear(x, w', b)`` with w' stored transposed.

    It computes the same products in the same order; only the weight's memory layout differs.
    """
    made_by, readers = producers(graph), consumers(graph)
    weights = {leaf.name: leaf for leaf in graph.parameters}
    table: dict[Ref, Ref] = {}
    parameters = dict(weights)
    transposed: dict[str, Parameter] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        nodes.append(node)
        match = _conv1d(graph, node, made_by, readers, weights)
        if match is None:
            continue
        source, weight, bias, after = match
        new = transposed.get(weight.name) or _transpose(weight)
        transposed[weight.name] = new
        args = (source, Ref(new.name)) if bias is None else (source, Ref(new.name), bias)
        nodes.append(Node(f"{node.name}.linear", "aten.linear.default", args, {}, after.outputs))
        table[Ref(after.name)] = Ref(f"{node.name}.linear")
    for name, leaf in transposed.items():
        del parameters[name]
        parameters[leaf.name] = leaf
    graph = rebuild(graph, nodes, table)
    return _drop_dead(replace(graph, parameters=tuple(parameters.values())))


def _drop_dead(graph: LogicalGraph) -> LogicalGraph:
    from autosbp.graph.passes._cleanup import drop_dead

    return drop_dead(graph)


def _transpose(weight: Parameter) -> Parameter:
    rows, cols = weight.meta.sizes
    return Parameter(
        f"{weight.name}.t",
        TensorMeta((cols, rows), weight.meta.dtype),
        weight.source,
        (*weight.transforms, ("t",)),
        weight.trained,
    )


def _conv1d(
    graph: LogicalGraph,
    node: Node,
    made_by: dict[str, Node],
    readers: dict[Ref, list[Node]],
    weights: dict[str, Parameter],
) -> tuple[Ref, Parameter, Ref | None, Node] | None:
    """(input, weight, bias, final reshape) if ``node`` is the pattern's addmm or mm with no other reader, else None."""
    if node.op == "aten.addmm.default" and not node.kwargs:
        bias, flat, weight = node.args[:3]
    elif node.op == "aten.mm.default":
        bias, (flat, weight) = None, node.args[:2]
    else:
        return None
    before = made_by.get(flat.name)
    after = readers.get(Ref(node.name), [])
    if before is None or before.op != "aten.reshape.default" or len(after) != 1 or weight.name not in weights:
        return None
    if after[0].op != "aten.reshape.default" or len(readers.get(weight, [])) != 1:
        return None
    source = before.args[0]
    given, wanted = graph.meta(source).shape, after[0].outputs[0].shape
    if given[:-1] != wanted[:-1] or given[-1] != weights[weight.name].meta.shape[0]:
        return None
    return source, weights[weight.name], bias, after[0]
