"""Repeated sequences of ops, whatever is alive between them: checkpointing candidates where blocks pass on several values."""

from __future__ import annotations

from collections.abc import Sequence

from autosbp.graph.ir import LogicalGraph
from autosbp.sbp.rules import sharding_of
from autosbp.utils.periodic_runs import heaviest_run, key_ids

MIN_MATMULS = 2
"""Minimum number of matmuls in one repeat: fewer are only a part of a layer, such as its projections."""
MIN_FLOPS_SHARE = 0.05
"""Minimum share of the model's FLOPs in a run of repeats."""


def find_repeats(graph: LogicalGraph) -> tuple[tuple[str, ...], ...]:
    """Ops of each repeat, in order, of all runs of equal op sequences with a relevant share of the model's FLOPs.

    A repeat begins at the op before which the fewest bytes are alive.
    """
    nodes = [node for node in graph.nodes if node.name in graph.parameter_dependent]
    kinds = key_ids((node.op, node.outputs) for node in nodes)
    flops = [float(sharding_of(graph, node).flops) for node in nodes]
    names, alive = [node.name for node in nodes], _alive(graph, [node.name for node in nodes])
    found: list[tuple[str, ...]] = []

    def search(low: int, high: int) -> None:
        """Find the best run within ops ``low`` to ``high - 1``, then recurse on both sides of it."""
        covered, (start, stop, period) = heaviest_run(kinds[low:high], flops[low:high], MIN_MATMULS)
        if covered < MIN_FLOPS_SHARE * sum(flops) or not covered:
            return
        search(low, low + start)
        first = min(range(low + start, low + start + period), key=alive.__getitem__)
        found.extend(tuple(names[at : at + period]) for at in range(first, low + stop - period + 1, period))
        search(low + stop, high)

    search(0, len(nodes))
    return tuple(found)


def _alive(graph: LogicalGraph, names: Sequence[str]) -> list[int]:
    """Bytes alive before each op: made by earlier ops and read by it or later ones."""
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
