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

    def local_input(self, position: int) -> tuple[int, ...]:
        """Local shape of a tensor argument."""
        ref = list(self.node.refs())[position]
        return local_shape(self.graph.meta(ref).sizes, self.signature.ins[position], self.mesh)

    def start(self, position: int, dim: int) -> int:
        """Where this rank's part of tensor argument ``position`` begins along ``dim``."""
        layout = self.signature.ins[position]
        return self.local_input(position)[dim] * shard_index(dim, layout, self.mesh, self.coordinate)

    def argument(self, position: int, default: Any = None) -> Any:
        """A positional argument of the op; ``default`` where it was left out."""
        return self.args[position] if len(self.args) > position else default

    def group(self, *factors: str) -> tuple[int, ...]:
        """The axes that split any of these factors, or any that is served; in mesh order."""
        names = factors or tuple(self.axes)
        return tuple(sorted({axis for name in names for axis in self.axes.get(name, ())}))


Implementation = Callable[[SplitCall], tuple[Callable[..., Any], tuple[Any, ...]]]
"""From the op to the function that the program calls instead, and its arguments."""
