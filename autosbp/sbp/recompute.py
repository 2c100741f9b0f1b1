"""Runs of ops that are run forward again for their backward, rather than that what they make is kept.

Forward keeps of such a run only what it reads from elsewhere. Before the backward of its last op, all of it runs once more,
its collectives too, and keeps what autograd keeps (Chen et al. 2016, "Training deep nets with sublinear memory cost").
Boxes of what a run reads belong to it: of a value that is gathered for its first op, the parts are kept, not the whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from autosbp.errors import InputError
from autosbp.graph.ir import LogicalGraph, Ref
from autosbp.plan import Strategy
from autosbp.sbp.groups import sends_gradient
from autosbp.sbp.placement import NdSbp
from autosbp.sbp.program import Box, Item

ReadKey = Ref | tuple[Ref, str, NdSbp]
FIELD = "strategy.recompute"


@dataclass(frozen=True, slots=True)
class Segment:
    """Items ``first`` to ``last`` of a program, which are recomputed together.

    Args:
        reads: what they read from elsewhere, in order; without copies of parameters that are gathered for the program.
        makes: what is read from them elsewhere.
        own: parameters among ``reads`` that only they bring gradients to.
    """

    first: int
    last: int
    reads: tuple[ReadKey, ...]
    makes: tuple[ReadKey, ...]
    own: frozenset[str]


def check_recompute(graph: LogicalGraph, strategy: Strategy, programs: Sequence[LogicalGraph]) -> None:
    """``InputError`` unless the strategy's runs are ops of the graph, in order, apart, and each in one of its programs."""
    if not strategy.recompute:
        return
    place = {node.name: at for at, node in enumerate(graph.nodes)}
    names = [{node.name for node in part.nodes} for part in programs]
    before = -1
    for at, (first, last) in enumerate(strategy.recompute):
        for name in (first, last):
            if name not in place:
                raise InputError(f"{FIELD}[{at}]", name, "the name of an op of the model is expected")
        if not before < place[first] <= place[last]:
            raise InputError(f"{FIELD}[{at}]", [first, last], "ops in the program's order, behind the run before")
        before = place[last]
        if not any(first in own and last in own for own in names):
            raise InputError(f"{FIELD}[{at}]", [first, last], "no cut between stages in a run is expected")


def recomputed_ranges(strategy: Strategy, items: Sequence[Item]) -> tuple[tuple[int, int], ...]:
    """First and last item of each of the strategy's runs that is in this program, with the boxes before its first op."""
    if not strategy.recompute:
        return ()
    place = {item.node.name: at for at, item in enumerate(items) if not isinstance(item, Box)}
    found = []
    for first, last in strategy.recompute:
        if first in place and last in place:
            begin = place[first]
            while begin > 0 and isinstance(items[begin - 1], Box):
                begin -= 1
            found.append((begin, place[last]))
    return tuple(found)


def region_of(ranges: Iterable[tuple[int, int]], num_items: int) -> list[int]:
    """Of each item, the number of its run; -1 where it is in none."""
    region = [-1] * num_items
    for number, (first, last) in enumerate(ranges):
        region[first : last + 1] = [number] * (last + 1 - first)
    return region


def find_segments(
    graph: LogicalGraph,
    items: Sequence[Item],
    ranges: Sequence[tuple[int, int]],
    gathered: Iterable[ReadKey],
    readers: Mapping[ReadKey, Sequence[int]],
) -> tuple[Segment, ...]:
    """The segments of a program.

    Args:
        ranges: of ``recomputed_ranges``.
        gathered: keys of boxes whose copies are brought to the program.
        readers: items from which a gradient comes to each value.
    """
    if not ranges:
        return ()
    brought, region = set(gathered), region_of(ranges, len(items))
    made = {key: at for at, item in enumerate(items) for key in made_by(item)}
    outside: dict[int, set[ReadKey]] = {number: set() for number in range(len(ranges))}
    for at, item in enumerate(items):
        for key in read_by(item, brought):
            home = region[made[key]] if key in made else -1
            if home >= 0 and home != region[at]:
                outside[home].add(key)
    results: tuple[ReadKey, ...] = graph.results or made_by(items[-1])
    found = []
    for number, (first, last) in enumerate(ranges):
        inside = items[first : last + 1]
        makes = [key for item in inside for key in made_by(item)]
        reads = dict.fromkeys(key for item in inside for key in read_by(item, brought))
        own = {
            leaf.name
            for leaf in graph.parameters
            if Ref(leaf.name) in reads and _alone(Ref(leaf.name), number, items, region, brought, readers)
        }
        wanted = outside[number] | set(results)
        local = set(makes)
        found.append(
            Segment(
                first,
                last,
                tuple(key for key in reads if key not in local),
                tuple(key for key in makes if key in wanted),
                frozenset(own),
            )
        )
    return tuple(found)


def _alone(
    ref: Ref,
    number: int,
    items: Sequence[Item],
    region: Sequence[int],
    brought: set[ReadKey],
    readers: Mapping[ReadKey, Sequence[int]],
) -> bool:
    """Whether only this run brings gradients to a parameter."""
    return all(region[at] == number or not read_by(items[at], brought) for at in readers.get(ref, ()))


def made_by(item: Item) -> tuple[ReadKey, ...]:
    """What an item makes."""
    if isinstance(item, Box):
        return (item.key,)
    return tuple(Ref(item.node.name, index) for index in range(len(item.node.outputs)))


def read_by(item: Item, gathered: set[ReadKey]) -> tuple[ReadKey, ...]:
    """What the program reads for an item; nothing for the copy of a parameter that is brought to it."""
    if isinstance(item, Box):
        return () if item.key in gathered else (item.ref,)
    return item.reads


def flows_back(graph: LogicalGraph, key: ReadKey) -> bool:
    """Whether a gradient comes back to a value, or to a copy of it."""
    ref, group = (key, "") if isinstance(key, Ref) else key[:2]
    return graph.has_gradient(ref) and sends_gradient(group)
