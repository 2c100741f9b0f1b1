"""Activation checkpointing: ops that are recomputed for their backward, so that their activations are not kept.

Forward keeps only the inputs of such a segment. Before the backward of its last op, the whole segment runs again,
including its collectives, and saves what autograd needs (Chen et al. 2016, "Training deep nets with sublinear memory
cost"). Boxings of a segment's inputs belong to the segment: for a value that is gathered for its first op, the shards
are kept, not the gathered tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from autosbp.errors import InputError
from autosbp.graph.ir import LogicalGraph, Ref
from autosbp.plan.plan import Strategy
from autosbp.program.program import Boxing, Item
from autosbp.program.shared_boxing import sends_gradient
from autosbp.sbp.layout import NdSbp

ReadKey = Ref | tuple[Ref, str, NdSbp]
RECOMPUTE_FIELD = "strategy.recompute"


@dataclass(frozen=True, slots=True)
class Segment:
    """Items ``first`` to ``last`` of a program, which are recomputed together.

    Args:
        reads: values that the items read from elsewhere, in order; not the parameters of copies that gathers bring.
        makes: their values that are read elsewhere.
        own: parameters among ``reads`` whose gradients come from this segment only.
    """

    first: int
    last: int
    reads: tuple[ReadKey, ...]
    outputs: tuple[ReadKey, ...]
    own: frozenset[str]


def check_recompute(graph: LogicalGraph, strategy: Strategy, programs: Sequence[LogicalGraph]) -> None:
    """Check the strategy's recomputed ranges.

    Raises:
        InputError: unless they are ops of the graph, in order, disjoint, and each within one of the programs.
    """
    if not strategy.recompute:
        return
    place = {node.name: at for at, node in enumerate(graph.nodes)}
    names = [{node.name for node in part.nodes} for part in programs]
    before = -1
    for at, (first, last) in enumerate(strategy.recompute):
        for name in (first, last):
            if name not in place:
                raise InputError(f"{RECOMPUTE_FIELD}[{at}]", name, "expected the name of an op of the model")
        if not before < place[first] <= place[last]:
            raise InputError(
                f"{RECOMPUTE_FIELD}[{at}]", [first, last], "expected ops in program order, after the previous segment"
            )
        before = place[last]
        if not any(first in own and last in own for own in names):
            raise InputError(f"{RECOMPUTE_FIELD}[{at}]", [first, last], "expected a segment within one stage")


def recomputed_ranges(strategy: Strategy, items: Sequence[Item]) -> tuple[tuple[int, int], ...]:
    """First and last item of each recomputed range in this program, including the boxes before its first op."""
    if not strategy.recompute:
        return ()
    place = {item.node.name: at for at, item in enumerate(items) if not isinstance(item, Boxing)}
    found = []
    for first, last in strategy.recompute:
        if first in place and last in place:
            begin = place[first]
            while begin > 0 and isinstance(items[begin - 1], Boxing):
                begin -= 1
            found.append((begin, place[last]))
    return tuple(found)


def segment_ids(ranges: Iterable[tuple[int, int]], num_items: int) -> list[int]:
    """Number of the recomputed range that each item is in, -1 for none."""
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
        ranges: result of ``recomputed_ranges``.
        gathered: keys of boxes that gathers run.
        readers: items whose backward contributes to each value's gradient.
    """
    if not ranges:
        return ()
    brought, region = set(gathered), segment_ids(ranges, len(items))
    made = {key: at for at, item in enumerate(items) for key in item_outputs(item)}
    outside: dict[int, set[ReadKey]] = {number: set() for number in range(len(ranges))}
    for at, item in enumerate(items):
        for key in item_inputs(item, brought):
            home = region[made[key]] if key in made else -1
            if home >= 0 and home != region[at]:
                outside[home].add(key)
    results: tuple[ReadKey, ...] = graph.results or item_outputs(items[-1])
    found = []
    for number, (first, last) in enumerate(ranges):
        inside = items[first : last + 1]
        makes = [key for item in inside for key in item_outputs(item)]
        reads = dict.fromkeys(key for item in inside for key in item_inputs(item, brought))
        own = {
            leaf.name
            for leaf in graph.parameters
            if Ref(leaf.name) in reads and _is_exclusive(Ref(leaf.name), number, items, region, brought, readers)
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


def _is_exclusive(
    ref: Ref,
    number: int,
    items: Sequence[Item],
    region: Sequence[int],
    brought: set[ReadKey],
    readers: Mapping[ReadKey, Sequence[int]],
) -> bool:
    """Whether gradients of a parameter come from this range only."""
    return all(region[at] == number or not item_inputs(items[at], brought) for at in readers.get(ref, ()))


def item_outputs(item: Item) -> tuple[ReadKey, ...]:
    """Keys of the values that an item produces."""
    if isinstance(item, Boxing):
        return (item.key,)
    return tuple(Ref(item.node.name, index) for index in range(len(item.node.outputs)))


def item_inputs(item: Item, gathered: set[ReadKey]) -> tuple[ReadKey, ...]:
    """Keys that the program reads for an item; none for a parameter copy that a gather brings."""
    if isinstance(item, Boxing):
        return () if item.key in gathered else (item.ref,)
    return item.reads


def receives_gradient(graph: LogicalGraph, key: ReadKey) -> bool:
    """Whether a value, or a boxed copy of it, receives a gradient."""
    ref, group = (key, "") if isinstance(key, Ref) else key[:2]
    return graph.has_gradient(ref) and sends_gradient(group)
