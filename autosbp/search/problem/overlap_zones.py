"""Positions of ops in a pass relative to its overlapped messages (``problem.cost_weights``)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from autosbp.graph.ir import LogicalGraph
from autosbp.sbp.rules import sharding_of
from autosbp.search.problem.cost_weights import EARLY, GATHER_PER_USE, INNER, LATE, ZONES


@dataclass(frozen=True, slots=True)
class OverlapZones:
    """Zones of a graph's ops and parameters.

    ``early``: ops before the ``first`` matrix product, and the parameters that they and it read. ``late``: ops from the
    ``last`` product that reads a parameter."""

    early: frozenset[str] = frozenset()
    late: frozenset[str] = frozenset()
    first: str = ""
    last: str = ""

    def op_zone(self, name: str) -> str:
        return EARLY if name in self.early else LATE if name in self.late else INNER

    def reads_zone(self, name: str) -> str:
        """Zone of an op's inputs and their boxing: those of the first and the last product precede the product itself."""
        return EARLY if name == self.first else INNER if name == self.last else self.op_zone(name)

    def of_boxing(self, readers: Iterable[str]) -> str:
        """Zone of a value that these ops read in common: that of the earliest."""
        return min(map(self.reads_zone, readers), key=ZONES.index)

    def of_parameter(self, name: str) -> str:
        """Zone of a parameter, by its first reader."""
        return EARLY if name in self.early else INNER

    def used(self, storage: str) -> OverlapZones:
        """The zones under a parameter sharding.

        None (all inner) with gathers for each use, as the gathers of any op overlap with the backward of others."""
        return OverlapZones() if storage == GATHER_PER_USE else self


def find_zones(graph: LogicalGraph, inner: Collection[str]) -> OverlapZones:
    """Zones of a bound graph; no op in ``inner`` becomes late."""
    early, first = set[str](), ""
    computed = [node for node in graph.nodes if node.name in graph.parameter_dependent]
    for node in computed:
        early |= {ref.name for ref in node.refs() if ref.name in graph.parameter_names}
        if sharding_of(graph, node).flops > 0:
            first = node.name
            break
        early.add(node.name)
    late: list[str] = []
    for node in reversed(computed):
        if node.name in inner or node.name in early or node.name == first:
            break
        late.append(node.name)
        reads = any(ref.name in graph.parameter_names for ref in node.refs())
        if reads and sharding_of(graph, node).flops > 0:
            return OverlapZones(frozenset(early), frozenset(late), first, node.name)
    return OverlapZones(frozenset(early), first=first)
