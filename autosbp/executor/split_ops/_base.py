"""The arguments of a split implementation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from autosbp.graph.ir import LogicalGraph, Node
from autosbp.plan.plan import Signature
from autosbp.sbp.layout import local_shape, shard_index
from autosbp.sbp.mesh import Mesh


@dataclass(frozen=True)
class SplitCall:
    """One op on one rank.

    ``args`` and ``kwargs`` are those of the op itself; ``axes`` are the mesh axes that split each factor which the
    implementation serves.
    """

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
        """Start of this rank's part of tensor argument ``position`` along ``dim``."""
        layout = self.signature.ins[position]
        return self.local_input(position)[dim] * shard_index(dim, layout, self.mesh, self.coordinate)

    def argument(self, position: int, default: Any = None) -> Any:
        """A positional argument of the op, or ``default`` if it was left out."""
        return self.args[position] if len(self.args) > position else default

    def group(self, *factors: str) -> tuple[int, ...]:
        """The axes that split any of these factors (default: any served factor), in mesh order."""
        names = factors or tuple(self.axes)
        return tuple(sorted({axis for name in names for axis in self.axes.get(name, ())}))


Implementation = Callable[[SplitCall], tuple[Callable[..., Any], tuple[Any, ...]]]
"""Maps the op to the function that the program calls instead, and its arguments."""
