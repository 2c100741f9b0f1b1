"""Runs of ops that repeat, whatever else is alive between them: what may be recomputed where no block hands one value on."""

from __future__ import annotations

from collections.abc import Sequence

from autosbp.graph.ir import LogicalGraph
from autosbp.repetition import heaviest_run, numbered
from autosbp.sbp.rules import sharding_of

PRODUCTS = 2
"""In one repeat: fewer are no layer, but a part of one, such as its projections."""
LEAST = 0.05
"""The part of a model's FLOPs that is worth a run."""


def find_repeats(graph: LogicalGraph) -> tuple[tuple[str, ...], ...]:
    """The ops of each repeat, in order, of all runs of equal ops that do much of the model's work. A repeat begins where
    least is alive that ops behind it read."""
    nodes = [node for node in graph.nodes if node.name in graph.computed]
    kinds = numbered((node.op, node.outputs) for node in nodes)
    flops = [float(sharding_of(graph, node).flops) for node in nodes]
    names, alive = [node.name for node in nodes], _alive(graph, [node.name for node in nodes])
    found: list[tuple[str, ...]] = []

    def search(low: int, high: int) -> None:
        """Of the ops from ``low`` to before ``high``: the best run, and what is before and behind it."""
        covered, (start, stop, period) = heaviest_run(kinds[low:high], flops[low:high], PRODUCTS)
        if covered < LEAST * sum(flops) or not covered:
            return
        search(low, low + start)
        first = min(range(low + start, low + start + period), key=alive.__getitem__)
        found.extend(tuple(names[at : at + period]) for at in range(first, low + stop - period + 1, period))
        search(low + stop, high)

    search(0, len(nodes))
    return tuple(found)


def _alive(graph: LogicalGraph, names: Sequence[str]) -> list[int]:
    """Before each op, the bytes that ops before it made, and it or later ones read."""
    place = {name: at for at, name in enumerate(names)}
    last: dict[str, int] = {}
    for at, name in enumerate(names):
        for ref in graph.nodes[graph.positions[name]].refs():
            if ref.name in place:
                last[ref.name] = at
    changes = [0] * (len(names) + 1)
    for name, until in last.items():
        size = sum(meta.num_bytes for meta in graph.nodes[graph.positions[name]].outputs)
        changes[place[name] + 1] += size
        changes[until + 1] -= size
    total, found = 0, []
    for change in changes[:-1]:
        total += change
        found.append(total)
    return found
