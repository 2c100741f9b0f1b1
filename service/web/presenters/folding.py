"""A model's ops in its repeated layers, as pages fold them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from autosbp.costmodel.recompute import recomputable_blocks
from autosbp.graph.ir import LogicalGraph, Node


@dataclass(frozen=True, slots=True)
class Part:
    """Neighbouring ops of one layer, or outside all of them (``layer`` is None), in one pipeline stage if there are any."""

    layer: int | None
    stage: int | None
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Parts:
    """All ops that depend on a parameter, in the program's order."""

    parts: tuple[Part, ...]
    has_layers: bool

    def title(self, first: Part, last: Part) -> str:
        """Of neighbouring layers that are alike, or of what is outside."""
        if first.layer is not None and last.layer is not None:
            one, two = first.layer + 1, last.layer + 1
            return f"Layer {one}" if one == two else f"Layers {one} to {two}"
        if not self.has_layers:
            return "All ops"
        return "Before the layers" if first is self.parts[0] else "After the layers"


def parts_of(graph: LogicalGraph, stages: Mapping[str, int] | None = None) -> Parts:
    """``graph`` is bound; ``stages`` tells ops' stages. Ops between two layers belong to the first of them."""
    stages = stages or {}
    blocks = recomputable_blocks(graph)
    place = {name: at for at, block in enumerate(blocks) for name in block}
    nodes = [node for node in graph.nodes if node.name in graph.computed]
    layers = _filled(nodes, place)
    pairs = zip(nodes, layers, strict=True)
    found = tuple(
        Part(layer, stage, tuple(node for node, _ in members))
        for (layer, stage), members in groupby(pairs, key=lambda pair: (pair[1], stages.get(pair[0].name)))
    )
    return Parts(found, bool(blocks))


def _filled(nodes: Sequence[Node], place: Mapping[str, int]) -> list[int | None]:
    last = max((at for at, node in enumerate(nodes) if node.name in place), default=-1)
    found: list[int | None] = []
    for at, node in enumerate(nodes):
        before = found[-1] if found else None
        found.append(place.get(node.name, before if at < last else None))
    return found
