"""Places where a model may be cut into stages, and the bytes that cross each."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from autosbp.graph.ir import LogicalGraph, Node

Floats = NDArray[np.float64]


def computed(graph: LogicalGraph) -> list[Node]:
    """The computed ops of a graph, in program order."""
    return [node for node in graph.nodes if node.name in graph.parameter_dependent]


def cut_places(graph: LogicalGraph, starts: Collection[str] | None) -> list[int]:
    """Indices of ops that a chunk may begin with: any op but the first, or those in ``starts``."""
    nodes = computed(graph)
    return [place for place in range(1, len(nodes)) if starts is None or nodes[place].name in starts]


def crossing_bytes(graph: LogicalGraph) -> Floats:
    """Bytes [2, place] of the tensors alive at each place between two ops: all, and those with a gradient."""
    nodes = computed(graph)
    at = {node.name: place for place, node in enumerate(nodes)}
    last = {ref: place for place, node in enumerate(nodes) for ref in node.refs() if ref.name in at}
    change = np.zeros((2, len(nodes) + 1))
    for ref, end in last.items():
        size = graph.meta(ref).num_bytes * np.array([1.0, graph.has_gradient(ref)])
        change[:, at[ref.name] + 1] += size
        change[:, end + 1] -= size
    crossing: Floats = np.cumsum(change, axis=1)
    return crossing
