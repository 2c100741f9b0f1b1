"""Fuse element-wise chains into one op of torch."""

from __future__ import annotations

from autosbp.graph.ir import LogicalGraph, Node, Ref
from autosbp.graph.passes._graph_edits import producers, rebuild

_SCALE = 0.7978845608028654  # sqrt(2 / pi)


def fuse_gelu(graph: LogicalGraph) -> LogicalGraph:
    """Replace the ops ``0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`` by ``gelu(x, approximate="tanh")``."""
    made_by = producers(graph)
    table: dict[Ref, Ref] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        source = _gelu_input(node, made_by)
        if source is None:
            nodes.append(node)
        else:
            fused = f"{node.name}.gelu"
            nodes.append(Node(fused, "aten.gelu.default", (source,), {"approximate": "tanh"}, node.outputs))
            table[Ref(node.name)] = Ref(fused)
    return rebuild(graph, nodes, table)


def _match(made_by: dict[str, Node], arg: object, op: str, scalar: float | None = None) -> Ref | None:
    """The tensor operand if ``arg`` is ``op(tensor, scalar)``, else None."""
    node = made_by.get(arg.name) if isinstance(arg, Ref) else None
    if node is None or node.op != op or not isinstance(node.args[0], Ref):
        return None
    if scalar is not None and (isinstance(node.args[1], Ref) or abs(node.args[1] - scalar) > 1e-12):
        return None
    return node.args[0]


def _gelu_input(node: Node, made_by: dict[str, Node]) -> Ref | None:
    if node.op != "aten.mul.Tensor" or not all(isinstance(arg, Ref) for arg in node.args[:2]):
        return None
    source = _match(made_by, node.args[0], "aten.mul.Tensor", 0.5)
    tanh = _match(made_by, node.args[1], "aten.add.Tensor", 1.0)
    inner = _match(made_by, _match(made_by, tanh, "aten.tanh.default"), "aten.mul.Tensor", _SCALE)
    total = made_by.get(inner.name) if inner is not None else None
    if source is None or total is None or total.op != "aten.add.Tensor" or total.args[0] != source:
        return None
    cube = _match(made_by, total.args[1], "aten.mul.Tensor", 0.044715)
    return source if _match(made_by, cube, "aten.pow.Tensor_Scalar", 3.0) == source else None
