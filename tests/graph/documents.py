"""A small graph document that tests change: a linear layer, a constant offset and a mean square."""

from __future__ import annotations

import copy
from typing import Any

from autosbp.graph.constants import encode_bytes


def _node(name: str, op: str, args: list[Any], outputs: list[Any]) -> dict[str, Any]:
    return {"name": name, "op": f"aten.{op}", "args": args, "outputs": outputs}


_DOCUMENT: dict[str, Any] = {
    "schema": "autosbp.graph/1",
    "name": "square",
    "symbols": {"batch": 4},
    "parameters": [
        {"name": "w", "shape": [3, 2], "dtype": "float32", "source": "head.weight", "transforms": [["t"]]},
        {"name": "b", "shape": [3], "dtype": "float32"},
    ],
    "inputs": [
        {"name": "x", "shape": ["batch", 2], "dtype": "float32"},
        {"name": "ids", "shape": ["batch"], "dtype": "int64", "high": 9},
    ],
    "constants": [{"name": "offset", "shape": [3], "dtype": "float32", "data": encode_bytes(bytes(12))}],
    "nodes": [
        _node("two", "add.Tensor", [{"ref": "offset"}, 2.0], [{"shape": [3], "dtype": "float32"}]),
        _node(
            "y", "linear.default", [{"ref": "x"}, {"ref": "w"}, {"ref": "b"}],
            [{"shape": ["batch", 3], "dtype": "float32"}],
        ),
        _node("z", "add.Tensor", [{"ref": "y"}, {"ref": "two"}], [{"shape": ["batch", 3], "dtype": "float32"}]),
        _node(
            "flat", "reshape.default", [{"ref": "z"}, [{"sym": "3*batch"}]],
            [{"shape": ["3*batch"], "dtype": "float32"}],
        ),
        _node(
            "cast", "to.dtype", [{"ref": "flat"}, {"dtype": "float32"}],
            [{"shape": ["3*batch"], "dtype": "float32"}],
        ),
        _node("mean", "sum.default", [{"ref": "cast"}], [{"shape": [], "dtype": "float32"}]),
        _node("loss", "div.Tensor", [{"ref": "mean"}, {"sym": "3*batch"}], [{"shape": [], "dtype": "float32"}]),
    ],
    "loss": {"ref": "loss"},
    "provenance": {"source": "a test"},
}  # fmt: skip


def document(*changes: tuple[str, Any]) -> dict[str, Any]:
    """The document with values set at paths such as ``nodes.1.args.0``; ``...`` removes."""
    changed = copy.deepcopy(_DOCUMENT)
    for path, value in changes:
        *steps, last = path.split(".")
        place: Any = changed
        for step in steps:
            place = place[int(step) if isinstance(place, list) else step]
        key: Any = int(last) if isinstance(place, list) else last
        if value is ...:
            del place[key]
        else:
            place[key] = value
    return changed


def nested(depth: int) -> list[Any]:
    """Lists within lists."""
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value
