"""A model: its contents, the needs of a step, and its graph by layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import prod
from typing import Any

from autosbp.graph.ir import LogicalGraph, Node
from autosbp.report.model_estimate import estimate
from autosbp.sbp.rules import sharding_of
from autosbp.service.web.number_format import number, share, size_unit, title
from autosbp.service.web.presenters.layer_folding import Part, split_into_layers
from autosbp.service.web.presenters.page_parts import Chart, Figure, Stack, Table, stack
from autosbp.utils.formatting import count, num_bytes

_TONES = ("a", "b", "d", "e", "f", "g", "h")
_MOST_BARS = 14


@dataclass(frozen=True, slots=True)
class LayerOp:
    """One op of the first layer of a group."""

    name: str
    op: str
    shape: str
    dtype: str
    reads: str
    parameters: str
    flops: str


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """A group of consecutive equal layers."""

    index: int
    title: str
    count: int
    parameters: str
    flops: str
    share: str
    ops: tuple[LayerOp, ...]


@dataclass(frozen=True, slots=True)
class ModelView:
    """Content of a model's page that needs its graph, for a microbatch of one sample."""

    figures: tuple[Figure, ...]
    memory: Stack
    layers: tuple[LayerGroup, ...]
    kinds: Chart


def model_view(graph: LogicalGraph, optimizer: str = "adamw") -> ModelView:
    """Build the page; ``graph`` is the captured graph with a symbolic batch."""
    found = estimate(graph, 1, optimizer)
    bound = graph.bind(**dict.fromkeys(graph.symbols, 1))
    flops = {
        node.name: float(sharding_of(bound, node).flops)
        for node in bound.nodes
        if node.name in bound.parameter_dependent
    }
    memory = found["memory_breakdown"]
    parts = sorted(memory.items(), key=lambda part: -part[1])
    named = [(title(name), size, _TONES[at % len(_TONES)]) for at, (name, size) in enumerate(parts)]
    return ModelView(
        _figures(found),
        stack("Memory of a one-sample step on one device", named, size_unit(memory.values())),
        _layers(bound, flops),
        _kinds(bound, flops),
    )


def _figures(found: Mapping[str, Any]) -> tuple[Figure, ...]:
    return (
        Figure("Parameters", count(found["num_parameters"]).strip(), num_bytes(found["parameter_bytes"])),
        Figure("Forward pass", f"{count(found['flops_per_sample_forward'])}FLOP", "of one sample"),
        Figure("Ops", number(found["num_nodes"]), "in the graph"),
        Figure("Optimizer state", num_bytes(found["memory_breakdown"]["optimizer"]), found["optimizer"]),
        Figure("One device", num_bytes(found["memory_bytes_one_device"]), "for a step of one sample"),
    )


def _layers(graph: LogicalGraph, flops: Mapping[str, float]) -> tuple[LayerGroup, ...]:
    """Group consecutive layers that have the same ops."""
    folded = split_into_layers(graph)
    groups: list[LayerGroup] = []
    seen: set[str] = set()
    for _, alike in groupby(folded.parts, key=_kind):
        members = list(alike)
        words = folded.title(members[0], members[-1])
        groups.append(_group(graph, flops, members, len(groups), words, seen))
    return tuple(groups)


def _kind(part: Part) -> tuple[bool, tuple[object, ...]]:
    return part.layer is not None, tuple((node.op, node.outputs) for node in part.nodes)


def _group(
    graph: LogicalGraph,
    flops: Mapping[str, float],
    members: Sequence[Part],
    index: int,
    words: str,
    seen: set[str],
) -> LayerGroup:
    """Build a group; parameters in ``seen`` were counted by earlier groups."""
    total = sum(flops[node.name] for part in members for node in part.nodes)
    sizes, first_ops = 0, []
    for part in members:
        for node in part.nodes:
            own = [ref.name for ref in node.refs() if ref.name in graph.parameter_names and ref.name not in seen]
            seen.update(own)
            held = sum(prod(graph.metas[name][0].sizes) for name in own)
            sizes += held
            if part is members[0]:
                first_ops.append(_op(node, graph, flops[node.name], held))
    return LayerGroup(
        index,
        words,
        len(members),
        count(sizes).strip() or "0",
        f"{count(total)}FLOP",
        share(total / (sum(flops.values()) or 1.0)),
        tuple(first_ops),
    )


def _op(node: Node, graph: LogicalGraph, flops: float, held: int) -> LayerOp:
    made = node.outputs[0]
    reads = [ref.name for ref in node.refs() if ref.name not in graph.parameter_names]
    return LayerOp(
        node.name,
        node.op.split(".")[1] if "." in node.op else node.op,
        " × ".join(f"{size:,}" for size in made.sizes) or "scalar",
        made.dtype,
        ", ".join(reads),
        number(held) if held else "",
        f"{count(flops)}FLOP" if flops else "",
    )


def _kinds(graph: LogicalGraph, flops: Mapping[str, float]) -> Chart:
    """FLOPs by op, largest first."""
    totals: dict[str, list[float]] = {}
    for node in graph.nodes:
        if flops.get(node.name):
            totals.setdefault(node.op, []).append(flops[node.name])
    largest = sorted(totals.items(), key=lambda item: -sum(item[1]))
    every = sum(flops.values()) or 1.0
    scale, prefix = next(
        ((scale, name) for scale, name in ((1e12, "T"), (1e9, "G"), (1e6, "M")) if every >= scale), (1.0, "")
    )
    rows = tuple((op, number(len(each)), f"{sum(each) / scale:,.2f}", share(sum(each) / every)) for op, each in largest)
    names = [op.split(".")[1] if "." in op else op for op, _ in largest[:_MOST_BARS]]
    data = {
        "unit": f"{prefix}FLOP",
        "names": names,
        "series": [{"name": "Forward", "values": [sum(each) / scale for _, each in largest[:_MOST_BARS]]}],
    }
    spoken = f"{names[0]} does {share(sum(largest[0][1]) / every)} of the work." if largest else ""
    table = Table(("Op", "How many", f"{prefix}FLOP", "Share"), rows)
    return Chart("flops", "bars", "Compute of a forward pass by op", spoken, data, table, "small")
