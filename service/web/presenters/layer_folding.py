"""Groups a model's ops by its repeated layers, which pages fold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from autosbp.costmodel.recompute import recomputable_blocks
from autosbp.graph.ir import LogicalGraph, Node


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive ops of one layer, or outside all layers (``layer`` is None), within one pipeline stage."""

    layer: int | None
    stage: int | None
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Parts:
    """All ops that depend on a parameter, in program order."""

    parts: tuple[Part, ...]
    has_layers: bool

    def title(self, first: Part, last: Part) -> str:
        """Title of a range of equal layers, or of the ops outside the layers."""
        if first.layer is not None and last.layer is not None:
            one, two = first.layer + 1, last.layer + 1
            return f"Layer {one}" if one == two else f"Layers {one} to {two}"
        if not self.has_layers:
            return "All ops"
        return "Before the layers" if first is self.parts[0] else "After the layers"


def split_into_layers(graph: LogicalGraph, stages: Mapping[str, int] | None = None) -> Parts:
    """Split a bound graph into parts; ``stages`` maps ops to stages. Ops between two layers belong to the first of them."""
    stages = stages or {}
    blocks = recomputable_blocks(graph)
    place = {name: at for at, block in enumerate(blocks) for name in block}
    nodes = [node for node in graph.nodes if node.name in graph.parameter_dependent]
    layers = _assign_layers(nodes, place)
    pairs = zip(nodes, layers, strict=True)
    found = tuple(
        Part(layer, stage, tuple(node for node, _ in members))
        for (layer, stage), members in groupby(pairs, key=lambda pair: (pair[1], stages.get(pair[0].name)))
    )
    return Parts(found, bool(blocks))


def _assign_layers(nodes: Sequence[Node], place: Mapping[str, int]) -> list[int | None]:
    last = max((at for at, node in enumerate(nodes) if node.name in place), default=-1)
    found: list[int | None] = []
    for at, node in enumerate(nodes):
        before = found[-1] if found else None
        found.append(place.get(node.name, before if at < last else None))
    return found
