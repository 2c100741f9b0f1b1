"""The sharding map: layouts of all ops and parameters on the mesh axes, with equal layers folded.

Consecutive layers with the same ops, layouts, stage and activation checkpointing form a group, which shows its first
layer.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from autosbp.graph.ir import LogicalGraph
from autosbp.plan.plan import Signature, Strategy
from autosbp.sbp.layout import NdSbp, format_nd_sbp
from autosbp.service.web.presenters.layer_folding import Part, split_into_layers
from autosbp.service.web.presenters.mesh_axes import Layout, layout_of

_LAYER = re.compile(r"^(.*?)(\.\d+)(?=\.)")


@dataclass(frozen=True, slots=True)
class MapRow:
    """An op's result, or a parameter as stored, which follows the first op that reads it."""

    name: str
    what: str
    shape: str
    cells: tuple[Layout, ...]
    signature: str
    is_parameter: bool


@dataclass(frozen=True, slots=True)
class MapGroup:
    """A group of ``count`` equal layers; ``rows`` are those of the first."""

    index: int
    title: str
    count: int
    stage: int | None
    recomputed: bool
    rows: tuple[MapRow, ...]


@dataclass(frozen=True, slots=True)
class ShardingMap:
    """All groups, in program order."""

    axes: tuple[str, ...]
    groups: tuple[MapGroup, ...]
    num_ops: int
    num_parameters: int

    def found(self, text: str, most: int) -> list[tuple[MapGroup, MapRow]]:
        """Rows of any group whose name or op contains ``text``, at most ``most``."""
        lowered = text.lower()
        hits = (
            (group, row)
            for group in self.groups
            for row in group.rows
            if lowered in row.name.lower() or lowered in row.what.lower()
        )
        return [hit for hit, _ in zip(hits, range(most), strict=False)]


def sharding_map(graph: LogicalGraph, strategy: Strategy) -> ShardingMap:
    """Build the map; ``graph`` is bound to the strategy's microbatch size."""
    folded, again = split_into_layers(graph, _stage_of(graph, strategy)), _checkpointed_ops(graph, strategy)
    rows = _Rows(graph, strategy, again)
    groups: list[MapGroup] = []
    for _, found in groupby(folded.parts, key=rows.key):
        alike = list(found)
        groups.append(
            MapGroup(
                len(groups),
                rows.layers(alike) or folded.title(alike[0], alike[-1]),
                len(alike),
                alike[0].stage,
                rows.is_checkpointed(alike[0]),
                tuple(rows.of(alike[0])),
            )
        )
    axes = tuple(f"{axis.name} ({axis.size})" for axis in strategy.mesh.axes)
    num_ops = sum(len(part.nodes) for part in folded.parts)
    return ShardingMap(axes, tuple(groups), num_ops, len(strategy.parameters))


class _Rows:
    """Rows of parts; a parameter belongs to the first op that reads it."""

    def __init__(self, graph: LogicalGraph, strategy: Strategy, again: Collection[str]) -> None:
        self.graph, self.strategy, self.again = graph, strategy, again
        self.own: dict[str, list[str]] = {}
        seen: set[str] = set()
        for node in graph.nodes:
            for ref in node.refs():
                if ref.name in strategy.parameters and ref.name not in seen:
                    seen.add(ref.name)
                    self.own.setdefault(node.name, []).append(ref.name)

    def key(self, part: Part) -> tuple[object, ...]:
        """Grouping key: equal for parts of one group."""
        signatures = tuple((node.op, str(self.strategy.signatures[node.name])) for node in part.nodes)
        stored = tuple(format_nd_sbp(self.strategy.parameters[name]) for name in self.parameters(part))
        return (part.layer is None, part.stage, self.is_checkpointed(part), signatures, stored)

    def is_checkpointed(self, part: Part) -> bool:
        """Whether the part's ops are recomputed in backward."""
        return part.nodes[0].name in self.again

    def layers(self, alike: Sequence[Part]) -> str:
        """Names of the layers, such as ``h.3 to h.5``, if the parameters' names contain them."""
        ends = [_layer(self.parameters(part)) for part in (alike[0], alike[-1])]
        if alike[0].layer is None or ends[0] is None or ends[1] is None:
            return ""
        return ends[0] if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"

    def parameters(self, part: Part) -> list[str]:
        """Names of a part's parameters, in program order."""
        return [name for node in part.nodes for name in self.own.get(node.name, ())]

    def of(self, part: Part) -> Iterator[MapRow]:
        for node in part.nodes:
            signature = self.strategy.signatures[node.name]
            yield MapRow(
                node.name,
                node.op.split(".")[1] if node.op.count(".") else node.op,
                _shape(node.outputs[0].sizes),
                _cells(signature.outs[0]),
                _inputs(signature),
                False,
            )
            for name in self.own.get(node.name, ()):
                shape = _shape(self.graph.metas[name][0].sizes)
                yield MapRow(name, "parameter", shape, _cells(self.strategy.parameters[name]), "", True)


def _inputs(signature: Signature) -> str:
    return "  ".join(format_nd_sbp(layout) for layout in signature.ins)


def _cells(layout: NdSbp) -> tuple[Layout, ...]:
    return tuple(layout_of(sbp) for sbp in layout)


def _shape(sizes: Sequence[int]) -> str:
    return " × ".join(f"{size:,}" for size in sizes) or "scalar"


def _stage_of(graph: LogicalGraph, strategy: Strategy) -> dict[str, int]:
    """Pipeline stage of each op; empty without a pipeline."""
    pipeline = strategy.pipeline
    if pipeline is None:
        return {}
    cuts, chunk, found = set(pipeline.cuts), 0, {}
    for node in graph.nodes:
        chunk += node.name in cuts
        found[node.name] = pipeline.stage_of(chunk)
    return found


def _checkpointed_ops(graph: LogicalGraph, strategy: Strategy) -> set[str]:
    """Ops that are recomputed in backward (activation checkpointing)."""
    found: set[str] = set()
    for first, last in strategy.recompute:
        begin, end = graph.positions[first], graph.positions[last]
        found |= {node.name for node in graph.nodes[begin : end + 1]}
    return found


def _layer(parameters: Sequence[str]) -> str | None:
    """Layer prefix of parameters, such as ``h.3`` for ``h.3.mlp.weight``."""
    for name in parameters:
        found = _LAYER.match(name)
        if found:
            return found[1] + found[2]
    return None
