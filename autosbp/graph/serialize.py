"""The graph's JSON document: writing, and strict reading.

A document holds no code and no pickles. Reading checks version, unknown fields, unique names, order (a reference to a
later node would be a cycle) and sizes; ``autosbp.sbp.rules.check_graph`` checks ops and shapes against their rules.
"""

from __future__ import annotations

from typing import Any

from autosbp.errors import GraphError, InputError
from autosbp.graph._reader import SCHEMA, Reader
from autosbp.graph.fold import fold_nodes
from autosbp.graph.found import rules_to_dict
from autosbp.graph.ir import Arg, DType, LogicalGraph, Node, Ref, Sym, TensorMeta


def to_dict(graph: LogicalGraph, fold: bool = True) -> dict[str, Any]:
    """The document of ``graph``; with ``fold``, a run of repeated blocks is written once with its count."""
    nodes = [_encode_node(node) for node in graph.nodes]
    return {
        "schema": SCHEMA,
        "name": graph.name,
        "symbols": dict(graph.symbols),
        "parameters": [
            {
                "name": leaf.name,
                **_encode_meta(leaf.meta),
                **({} if leaf.source == leaf.name else {"source": leaf.source}),
                **({"transforms": [list(step) for step in leaf.transforms]} if leaf.transforms else {}),
                **({} if leaf.trained else {"trained": False}),
            }
            for leaf in graph.parameters
        ],
        "inputs": [
            {"name": leaf.name, **_encode_meta(leaf.meta), **({} if leaf.high is None else {"high": leaf.high})}
            for leaf in graph.inputs
        ],
        "constants": [{"name": leaf.name, **_encode_meta(leaf.meta), "data": leaf.data} for leaf in graph.constants],
        **({"rules": rules_to_dict(graph.rules)} if graph.rules else {}),
        "nodes": fold_nodes(nodes) if fold else nodes,
        "loss": _encode(graph.loss),
        "provenance": dict(graph.provenance),
    }


def _encode_meta(meta: TensorMeta) -> dict[str, Any]:
    return {"shape": list(meta.shape), "dtype": meta.dtype}


def _encode_node(node: Node) -> dict[str, Any]:
    document: dict[str, Any] = {"name": node.name, "op": node.op, "args": [_encode(arg) for arg in node.args]}
    if node.kwargs:
        document["kwargs"] = {key: _encode(arg) for key, arg in node.kwargs.items()}
    document["outputs"] = [_encode_meta(meta) for meta in node.outputs]
    if node.rule:
        document["rule"] = node.rule
    return document


def _encode(arg: Arg) -> Any:
    if isinstance(arg, Ref):
        return {"ref": arg.name, "out": arg.index} if arg.index else {"ref": arg.name}
    if isinstance(arg, Sym):
        return {"sym": arg.expr}
    if isinstance(arg, DType):
        return {"dtype": arg.name}
    if isinstance(arg, tuple):
        return [_encode(item) for item in arg]
    return arg


def from_dict(data: object) -> LogicalGraph:
    """Read and check a document; raises ``GraphError`` that names the field, the value and the limit."""
    try:
        return Reader(data).read()
    except GraphError:
        raise
    except RecursionError:
        raise GraphError("document", "...", "less deeply nested lists and mappings are expected") from None
    except InputError as error:
        raise GraphError(error.field, error.value, error.limit) from None
