"""Where a model may be cut into pipeline stages, found in the graph's structure.

A *section* ends wherever one activation alone is still needed by later ops: it is all that a cut there sends on. Blocks are
the run of sections that repeats, such as (attention, feed-forward) of every transformer layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autosbp.graph.ir import LogicalGraph, Node
from autosbp.sbp.rules import sharding_of

ROUNDING_RELATIVE = 1e-9  # of all FLOPs: more than sums of them are off by


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
    known: dict[object, int] = {}
    kinds = [known.setdefault(tuple((node.op, node.outputs) for node in part), len(known)) for part in parts]
    flops = [sum(sharding_of(graph, node).flops for node in part) for part in parts]
    covered, start, stop, period = best_run(kinds, flops)
    if not covered:
        return Blocks(_names(parts), (), ())
    blocks = tuple(_names(parts[at : at + period]) for at in range(start, stop, period))
    return Blocks(_names(parts[:start]), blocks, _names(parts[stop:]))


def best_run(kinds: Sequence[int], flops: Sequence[float], products: int = 1) -> tuple[float, int, int, int]:
    """(FLOPs, start, stop, period) of the best run, the first of equals, of those that repeat so many sections with FLOPs;
    the FLOPs are 0 where nothing does.

    Run lengths of all starts of a period come from where its sections cease to be those one period on; sums are made only
    of runs that cumulated FLOPs, but for their rounding, do not rule out.
    """
    found = np.asarray(kinds)
    total = np.concatenate(([0.0], np.cumsum(flops)))
    counted = np.concatenate(([0], np.cumsum(np.asarray(flops) > 0)))
    slack = ROUNDING_RELATIVE * float(total[-1])
    best = (0.0, 0, 0, 1)
    for period in range(1, len(kinds) // 2 + 1):
        starts = np.arange(len(kinds) - period)
        ends = np.where(found[:-period] == found[period:], len(starts), starts)
        ends = np.minimum.accumulate(ends[::-1])[::-1]
        stops = starts + (ends - starts) // period * period + period
        likely = (stops - starts > period) & (total[stops] - total[starts] >= best[0] - slack)
        likely &= counted[starts + period] - counted[starts] >= products
        for start in map(int, np.flatnonzero(likely)):
            stop = int(stops[start])
            if total[stop] - total[start] >= best[0] - slack:
                covered = sum(flops[start:stop])
                if covered > best[0]:
                    best = (covered, start, stop, period)
    return best


def _names(parts: Sequence[Sequence[Node]]) -> tuple[str, ...]:
    return tuple(node.name for part in parts for node in part)
