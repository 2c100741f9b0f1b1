"""Which ops come before all messages beside a pass are there, and which after (``problem.weights``)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from autosbp.graph.ir import LogicalGraph
from autosbp.sbp.rules import sharding_of
from autosbp.search.problem.weights import EARLY, INNER, LATE, USE, ZONES


@dataclass(frozen=True, slots=True)
class Zones:
    """``early`` are the ops before the ``first`` product, with the parameters that these and it read; ``late`` those from the
    ``last`` product on that reads a parameter."""

    early: frozenset[str] = frozenset()
    late: frozenset[str] = frozenset()
    first: str = ""
    last: str = ""

    def of_op(self, name: str) -> str:
        return EARLY if name in self.early else LATE if name in self.late else INNER

    def of_reads(self, name: str) -> str:
        """Of what an op reads, and of its boxing: that of the first and the last product is there when these begin."""
        return EARLY if name == self.first else INNER if name == self.last else self.of_op(name)

    def of_boxing(self, readers: Iterable[str]) -> str:
        """Of what these ops read in common: before the first of them."""
        return min(map(self.of_reads, readers), key=ZONES.index)

    def of_parameter(self, name: str) -> str:
        """Of one, by its first reader."""
        return EARLY if name in self.early else INNER

    def used(self, storage: str) -> Zones:
        """Those that hold where parameters are stored so: gathered for each use, those of any op are on their way while others
        run backward."""
        return Zones() if storage == USE else self


def find_zones(graph: LogicalGraph, inner: Collection[str]) -> Zones:
    """The zones of a bound graph, none of whose ops ``inner`` is late."""
    early, first = set[str](), ""
    computed = [node for node in graph.nodes if node.name in graph.computed]
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
            return Zones(frozenset(early), frozenset(late), first, node.name)
    return Zones(frozenset(early), first=first)
