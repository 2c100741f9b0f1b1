"""Possible cuts of a model into pipeline stages, found in the graph's structure.

A *section* ends wherever later ops need only one activation, which is all that a cut there sends. Blocks are the
repeated run of sections, such as (attention, feed-forward) of every transformer layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autosbp.graph.ir import LogicalGraph, Node
from autosbp.sbp.rules import sharding_of
from autosbp.utils.periodic_runs import heaviest_run, key_ids


@dataclass(frozen=True, slots=True)
class BlockStructure:
    """The nodes of a model by name, in order: those before the repeated blocks, each block, and those after."""

    before: tuple[str, ...]
    blocks: tuple[tuple[str, ...], ...]
    after: tuple[str, ...]


def single_activation_sections(graph: LogicalGraph) -> list[list[Node]]:
    """The nodes that depend on a parameter, cut wherever only one activation is live."""
    nodes = [node for node in graph.nodes if node.name in graph.parameter_dependent]
    last: dict[str, int] = {}
    for at, node in enumerate(nodes):
        for ref in node.refs():
            last[ref.name] = at
    found: list[list[Node]] = [[]]
    live: set[str] = set()
    for at, node in enumerate(nodes):
        found[-1].append(node)
        live = {name for name in (*live, node.name) if last.get(name, -1) > at}
        if len(live) == 1:
            found.append([])
    return [section for section in found if section]


def find_blocks(graph: LogicalGraph) -> BlockStructure:
    """The run of equal blocks with the most FLOPs, in blocks of as few sections as possible.

    If nothing with matmuls repeats, all nodes are in ``before``. ``graph`` is bound.
    """
    parts = single_activation_sections(graph)
    kinds = key_ids(tuple((node.op, node.outputs) for node in part) for part in parts)
    flops = [sum(sharding_of(graph, node).flops for node in part) for part in parts]
    covered, (start, stop, period) = heaviest_run(kinds, flops)
    if not covered:
        return BlockStructure(_names(parts), (), ())
    blocks = tuple(_names(parts[at : at + period]) for at in range(start, stop, period))
    return BlockStructure(_names(parts[:start]), blocks, _names(parts[stop:]))


def _names(parts: Sequence[Sequence[Node]]) -> tuple[str, ...]:
    return tuple(node.name for part in parts for node in part)
