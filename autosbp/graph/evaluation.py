"""Evaluation graph: a training graph whose ops behave as in evaluation mode; nodes, shapes and names stay."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from autosbp.errors import InputError
from autosbp.graph.ir import Arg, LogicalGraph, Node

Arguments = tuple[Arg, ...]
GraphT = TypeVar("GraphT", bound=LogicalGraph)


def evaluation_graph(graph: GraphT, statistics: Collection[str] = ()) -> GraphT:
    """The graph without dropout.

    Args:
        statistics: names of the batch norms whose running statistics the executor keeps.

    Raises:
        InputError: another op has statistics of its own in evaluation mode, which the graph does not hold.
    """
    return replace(graph, nodes=tuple(_evaluation_node(node, statistics) for node in graph.nodes))


def _evaluation_node(node: Node, statistics: Collection[str]) -> Node:
    if node.name in statistics:
        return replace(node, args=_with_argument(_TRAINING, False)(node.args))
    if node.op in _WITH_STATISTICS and node.args[_TRAINING]:
        raise InputError(f"graph.{node.name}", node.op, "its running statistics are not kept: evaluate on one device")
    change = _CHANGES.get(node.op)
    return node if change is None else replace(node, args=change(node.args))


def _with_argument(place: int, value: Any) -> Callable[[Arguments], Arguments]:
    """Sets one positional argument if it is given."""
    return lambda args: (*args[:place], value, *args[place + 1 :]) if len(args) > place else args


_TRAINING = 5
"""Place of the argument that says whether a norm takes the statistics of its batch."""
_WITH_STATISTICS = frozenset(
    ("aten.batch_norm.default", "aten.native_batch_norm.default", "aten.instance_norm.default")
)
_CHANGES: Mapping[str, Callable[[Arguments], Arguments]] = {
    **{
        f"aten.{name}dropout.default": _with_argument(2, False) for name in ("", "feature_", "alpha_", "feature_alpha_")
    },
    "aten.native_dropout.default": _with_argument(2, False),
    "aten.scaled_dot_product_attention.default": _with_argument(4, 0.0),
    "aten.lstm.input": _with_argument(6, False),
    "aten.gru.input": _with_argument(6, False),
}
