"""Where a model may be cut into pipeline stages, found in the graph's structure.

A *section* ends wherever one activation alone is still needed by later ops: it is all that a cut there sends on. Blocks are
the run of sections that repeats, such as (attention, feed-forward) of every transformer layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autosbp.graph.ir import LogicalGraph, Node
from autosbp.repetition import heaviest_run, numbered
from autosbp.sbp.rules import sharding_of


@dataclass(frozen=True, slots=True)
class Blocks:
    """The nodes of a model by name, in order: what stands before the repeated blocks, each block, and what follows."""

    before: tuple[str, ...]
    blocks: tuple[tuple[str, ...], ...]
    after: tuple[str, ...]


def sections(graph: LogicalGraph) -> list[list[Node]]:
    """The nodes that depend on a parameter, cut wherever one activation alone is live."""
    nodes = [node for node in graph.nodes if node.name in graph.computed]
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


def find_blocks(graph: LogicalGraph) -> Blocks:
    """The run of equal blocks that does the most FLOPs, of as few sections as it takes; all is ``before`` where nothing
    with products repeats. ``graph`` is bound."""
    parts = sections(graph)
    kinds = numbered(tuple((node.op, node.outputs) for node in part) for part in parts)
    flops = [sum(sharding_of(graph, node).flops for node in part) for part in parts]
    covered, (start, stop, period) = heaviest_run(kinds, flops)
    if not covered:
        return Blocks(_names(parts), (), ())
    blocks = tuple(_names(parts[at : at + period]) for at in range(start, stop, period))
    return Blocks(_names(parts[:start]), blocks, _names(parts[stop:]))


def _names(parts: Sequence[Sequence[Node]]) -> tuple[str, ...]:
    return tuple(node.name for part in parts for node in part)
