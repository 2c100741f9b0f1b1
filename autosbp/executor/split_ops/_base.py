"""What a split implementation is told of the op whose place it takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from autosbp.graph.ir import LogicalGraph, Node
from autosbp.plan import Signature
from autosbp.sbp.mesh import Mesh
from autosbp.sbp.placement import local_shape, shard_index


@dataclass(frozen=True)
class SplitCall:
    """One op on one rank. ``args`` and ``kwargs`` are as the op itself would be called; ``axes`` are the mesh axes that
    split each factor which the implementation serves."""

    graph: LogicalGraph
    node: Node
    signature: Signature
    args: list[Any]
    kwargs: Mapping[str, Any]
    axes: Mapping[str, tuple[int, ...]]
    mesh: Mesh
    coordinate: tuple[int, ...]

    def start(self, position: int, dim: int) -> int:
        """Where this rank's part of tensor argument ``position`` begins along ``dim``."""
        ref, layout = list(self.node.refs())[position], self.signature.ins[position]
        part = local_shape(self.graph.meta(ref).sizes, layout, self.mesh)[dim]
        return part * shard_index(dim, layout, self.mesh, self.coordinate)

    def one_group(self) -> tuple[int, ...]:
        """The axes of an implementation that serves one factor."""
        (axes,) = self.axes.values()
        return axes


Implementation = Callable[[SplitCall], tuple[Callable[..., Any], tuple[Any, ...]]]
"""From the op to the function that the program calls instead, and its arguments."""
