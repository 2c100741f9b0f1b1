"""Extrapolate the memory of repeated blocks from a few copies of them.

A repeated run of items changes the live bytes by the same amount in each copy, with the same peak relative to its
start. So a dry run executes the first three copies and the last one, and adds the bytes of those between: live bytes
grow linearly, so their peak is at one of the ends. Every pass checks that the second and third copies match; if they do
not, everything must run.

Copies are found in the program itself. Their items apply the same ops to values at the same relative distance, read
parameters with equal storage and use, and are the last reader of the same relative values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

from autosbp.costmodel.memory.meta_tensors import GRADIENTS, MemoryMeter, MetaTensor
from autosbp.graph.ir import LogicalGraph, Node, Parameter, Ref
from autosbp.plan.plan import Strategy
from autosbp.program.activation_checkpointing import ReadKey, item_outputs
from autosbp.program.parameter_flow import ParameterFlow
from autosbp.program.program import Boxing, Item, Op
from autosbp.utils.periodic_runs import Keys, key_ids, likely_periods, periodic_runs

NUM_LEADING_COPIES = 3
"""Copies that run before the skipped ones: two that are compared, and one before these."""
MIN_SKIPPED_COPIES = 2
"""Minimum number of copies to skip."""
MIN_COPIES = NUM_LEADING_COPIES + MIN_SKIPPED_COPIES + 1
MAX_PERIODS = 8
"""Maximum number of copy lengths to try."""
Bytes = dict[str, int]


class RepeatMismatchError(Exception):
    """Copies changed the live bytes by different amounts."""


@dataclass(frozen=True, slots=True)
class SkippedCopies:
    """``count`` skipped copies of ``period`` items each, from item ``first`` on; earlier copies start at ``begin``."""

    begin: int
    period: int
    count: int

    @property
    def first(self) -> int:
        return self.begin + NUM_LEADING_COPIES * self.period

    @property
    def end(self) -> int:
        """The first item of the last copy, which runs."""
        return self.first + self.count * self.period


@dataclass(frozen=True, slots=True)
class CopyBoundary:
    """A boundary between two copies: before the second or the third, or (the last) before the skipped copies."""

    skip: SkippedCopies
    number: int

    @property
    def is_last(self) -> bool:
        return self.number == NUM_LEADING_COPIES - 1


class SkippedProgram:
    """Skipped copies of a program, and their boundaries."""

    def __init__(self, skips: Sequence[SkippedCopies], items: Sequence[Item]) -> None:
        self.skips = tuple(skips)
        self.boundaries = {
            skip.begin + (number + 1) * skip.period: CopyBoundary(skip, number)
            for skip in skips
            for number in range(NUM_LEADING_COPIES)
        }
        self._items = items
        self._handed: dict[SkippedCopies, Sequence[Hashable]] = {}

    def check(self, mark: CopyBoundary, values: Mapping[ReadKey, MetaTensor]) -> None:
        """Raise ``RepeatMismatchError`` if the third copy's outputs have other memory layouts than the second's.

        A copy's behaviour depends only on its inputs, so if two copies have the same outputs, all others do too.
        """
        if not mark.number:
            return
        end = mark.skip.begin + (mark.number + 1) * mark.skip.period
        handed = [
            (end - at, place, values[key].shape, values[key].strides, values[key].is_view, values[key].node is None)
            for at in range(end - mark.skip.period, end)
            for place, key in enumerate(item_outputs(self._items[at]))
            if key in values
        ]
        if self._handed.setdefault(mark.skip, handed) != handed:
            raise RepeatMismatchError

    def parameters_of_copy(self, skip: SkippedCopies) -> set[str]:
        """Names that the last copy before the skipped ones reads, among them all parameters that it reads as stored."""
        items = self._items[skip.first - skip.period : skip.first]
        return {read.name for item in items for read in _reads(item) if isinstance(read, Ref)}

    @staticmethod
    def gathered(skip: SkippedCopies, flow: ParameterFlow) -> Mapping[int, int]:
        """Number of skipped boxings per message of gathered parameters."""
        items = flow.items[skip.first : skip.end]
        return Counter(flow.place[item.key][0] for item in items if isinstance(item, Boxing) and item.key in flow.place)

    def rename_to_skipped(self, skip: SkippedCopies, values: dict[ReadKey, Any]) -> None:
        """Rename the values of the last executed copies to those of the last skipped ones."""
        for at in range(skip.begin, skip.first):
            moved = None
            for place, key in enumerate(item_outputs(self._items[at])):
                if key in values:
                    moved = moved or item_outputs(self._items[at + skip.count * skip.period])
                    values[moved[place]] = values.pop(key)


@dataclass(frozen=True, slots=True)
class _Region:
    """Bytes by purpose at the start, at the peak and at the end of a region between two boundaries of one phase."""

    opened: CopyBoundary | None
    closed: CopyBoundary | None
    start: Bytes
    peak: Bytes
    end: Bytes


class MeteredRegions:
    """Regions that a meter counts between boundaries, with the skipped copies added; ``added`` are their bytes so far."""

    def __init__(self, meter: MemoryMeter) -> None:
        self.meter = meter
        self.added: Bytes = {}
        self._found: list[_Region] = []
        self._opened: CopyBoundary | None = None
        self._start = dict(meter.by_purpose)

    @property
    def live(self) -> int:
        """Live bytes with skipped copies, as of the last phase."""
        return self.meter.live + sum(self.added.values())

    def reset(self, gradients: int) -> None:
        """Discard the regions since the last phase; ``gradients`` more bytes of gradients count from here on."""
        meter = self.meter
        self.added = _sum(self.added, {GRADIENTS: gradients}) if gradients else self.added
        self._found, self._opened, self._start = [], None, dict(meter.by_purpose)
        meter.peak, meter.at_peak = meter.live, dict(meter.by_purpose)

    def cross_boundary(self, mark: CopyBoundary | None) -> None:
        """End the current region at a boundary and start the next."""
        meter = self.meter
        now = dict(meter.by_purpose)
        self._found.append(_Region(self._opened, mark, self._start, meter.at_peak, now))
        self._opened, self._start = mark, now
        meter.peak, meter.at_peak = meter.live, dict(now)

    def fullest(self) -> Counter[str]:
        """Bytes by purpose at the peak since the last call; raises ``RepeatMismatchError``."""
        self.cross_boundary(None)
        regions, self._found = self._found, []
        if len(regions) == 1 and not self.added:
            return Counter(regions[0].peak)
        best: Bytes = {}
        most = -1
        for region in regions:
            mark, levels = region.opened, [region.peak]
            if mark is not None and mark.is_last:
                change, rise = _change_of_copies(mark.skip, regions)
                top = _sum(region.start, rise)
                levels = [top, _sum(top, change, mark.skip.count - 1)]
            for at in range(len(levels)):
                level = _sum(levels[at], self.added)
                if sum(level.values()) > most:
                    best, most = level, sum(level.values())
            if mark is not None and mark.is_last:
                self.added = _sum(self.added, change, mark.skip.count)
                level = _sum(region.peak, self.added)
                if sum(level.values()) > most:
                    best, most = level, sum(level.values())
        return Counter(best)


def _change_of_copies(skip: SkippedCopies, regions: Sequence[_Region]) -> tuple[Bytes, Bytes]:
    """Bytes by purpose of one copy, relative to its start: at its end, and at its peak."""
    found = []
    for region in regions:
        ends = {each.number for each in (region.opened, region.closed) if each is not None and each.skip is skip}
        if len(ends) == 2:  # both ends of the region
            found.append((_sum(region.end, region.start, -1), _sum(region.peak, region.start, -1)))
    if len(found) != NUM_LEADING_COPIES - 1 or any(_differs(*pair) for pair in zip(*found, strict=True)):
        raise RepeatMismatchError
    return found[0]


def _differs(one: Bytes, other: Bytes) -> bool:
    return any(one.get(name, 0) != other.get(name, 0) for name in {*one, *other})


def _sum(one: Bytes, other: Bytes, times: int = 1) -> Bytes:
    return {name: one.get(name, 0) + times * other.get(name, 0) for name in {**one, **other}}


def find_skippable_copies(
    graph: LogicalGraph,
    strategy: Strategy,
    flow: ParameterFlow,
    last_reader: Mapping[int, Sequence[ReadKey]],
    outputs: Sequence[ReadKey],
    deferring: frozenset[str] = frozenset(),
) -> SkippedProgram:
    """Find the copies of a program that can be skipped.

    Args:
        last_reader: values by the item that reads them last.
        outputs: values that are alive at the end.
        deferring: ops with deferred weight gradients.
    """
    ops = np.array(
        [-1 if isinstance(item, Boxing) else _op_kind_number(graph, item.node) for item in flow.items], dtype=np.int64
    )
    periods = [period for period in likely_periods(ops, MAX_PERIODS) if periodic_runs(ops, period, MIN_COPIES)]
    if not periods:  # no repetition even by ops alone
        return SkippedProgram((), flow.items)
    kinds = _ItemKeys(graph, strategy, flow, last_reader, outputs, deferring)
    numbers = kinds.numbers()
    best: tuple[SkippedCopies, ...] = ()
    saved = 0
    for period in periods:
        skips = tuple(kinds.skips(numbers, period))
        items = sum(skip.count * skip.period for skip in skips)
        if items > saved:
            best, saved = skips, items
    return SkippedProgram(best, flow.items)


class _ItemKeys:
    """Keys of a program's items that cover everything a dry run depends on."""

    def __init__(
        self,
        graph: LogicalGraph,
        strategy: Strategy,
        flow: ParameterFlow,
        last_reader: Mapping[int, Sequence[ReadKey]],
        outputs: Sequence[ReadKey],
        deferring: frozenset[str],
    ) -> None:
        self.graph, self.strategy, self.flow, self.outputs = graph, strategy, flow, outputs
        self.last_reader, self.deferring = last_reader, deferring
        self.leaves = {leaf.name: leaf for leaf in graph.parameters}
        self.made = {key: at for at, item in enumerate(flow.items) for key in item_outputs(item)}
        self.read_at: dict[ReadKey, list[int]] = {Ref(name): [] for name in self.leaves}  # readers of parameters
        for at, item in enumerate(flow.items):
            for read in _reads(item):
                if read in self.read_at:
                    self.read_at[read].append(at)
        data = Counter(read for item in flow.items for read in _reads(item) if self._is_data(read))
        self.shared = {read for read, readers in data.items() if readers > 1}  # all copies may read it
        self.begins = {segment.first for segment in flow.segments}
        self.ends = {segment.last for segment in flow.segments}
        self.inside = {at for segment in flow.segments for at in range(segment.first + 1, segment.last + 1)}
        self.before: dict[str, int] = {}  # last item that read each parameter

    def numbers(self) -> Keys:
        """Number of each item; equal for equivalent items."""
        flow = self.flow
        # Items that issue gathers are unique: gathers are issued in sequence. So are boxings of gathers kept for
        # backward: only copies that were read stay.
        alone = {*flow.forward_gathers, *flow.backward_gathers, *flow.recompute_gathers}
        alone |= {self.made[box.key] for gather in flow.gathers if gather.kept for box in gather.boxes}
        return key_ids(("alone", at) if at in alone else self._kind(at, item) for at, item in enumerate(flow.items))

    def _kind(self, at: int, item: Item) -> Hashable:
        done = tuple(self._place(at, key) for key in self.last_reader.get(at, ()))
        flags = at in self.flow.backward_items, at in self.begins, at in self.ends, at in self.inside
        if isinstance(item, Boxing):
            meta = self.graph.meta(item.ref)
            message = self.flow.place.get(item.key, (-1, 0))[0]
            own: Hashable = (
                item.src, item.dst, item.group, item.steps, item.differentiable, item.data, meta, message,
            )  # fmt: skip
        else:
            name = item.node.name
            own = (
                _op_kind_number(self.graph, item.node),
                item.signature,
                name in self.graph.differentiable,
                name in self.deferring,
            )
        return own, flags, done, tuple([self._place(at, read) for read in _reads(item)])

    def _place(self, at: int, key: ReadKey) -> Hashable:
        """Distance to the item that made a value, or the identity of any other value."""
        made = self.made.get(key)
        if made is not None:
            return key if key in self.shared else at - made
        leaf = self.leaves.get(key.name) if isinstance(key, Ref) else None
        if leaf is None:
            return key
        before, self.before[leaf.name] = self.before.get(leaf.name, at), at
        return self._parameter(leaf), at - before

    def _is_data(self, read: ReadKey) -> bool:
        item = self.flow.items[self.made[read]] if read in self.made else None
        return (isinstance(item, Op) and item.signature is None) or (isinstance(item, Boxing) and item.data)

    def _parameter(self, leaf: Parameter) -> Hashable:
        return leaf.meta, leaf.trained, self.strategy.parameters[leaf.name], len(self.read_at[Ref(leaf.name)])

    def skips(self, numbers: Keys, period: int) -> Iterator[SkippedCopies]:
        """Yield the copies of ``period`` items that can be skipped."""
        for begin, end, _ in periodic_runs(numbers, period, MIN_COPIES):
            while begin in self.inside:  # copies start between segments
                begin += 1
            skip = SkippedCopies(begin, period, (end - begin) // period - NUM_LEADING_COPIES - 1)
            if skip.count >= MIN_SKIPPED_COPIES and self._is_handed_on(skip):
                yield skip

    def _is_handed_on(self, skip: SkippedCopies) -> bool:
        """Whether skipping is safe.

        Later items may read from the copies only values of the last ones, and a parameter that a copy reads must have
        no reader outside that copy.
        """
        items, moved = self.flow.items, skip.count * skip.period
        behind = {read for at in range(skip.end, len(items)) for read in _reads(items[at])}
        for key in (*behind, *self.outputs):
            made = self.made.get(key, -1)
            if skip.begin <= made < skip.end and not skip.begin <= made - moved < skip.first:
                return False
        own = {read for at in range(skip.begin, skip.end) for read in _reads(items[at])}
        return all(
            len({(at - skip.begin) // skip.period for at in self.read_at[key]}) == 1
            for key in own
            if key in self.read_at
        )


def _reads(item: Item) -> tuple[ReadKey, ...]:
    return (item.ref,) if isinstance(item, Boxing) else item.reads


def _op_kind_number(graph: LogicalGraph, node: Node) -> int:
    """Number of an op's kind; equal for ops that differ only in names."""
    known = graph.cache.get(("own", node.name))
    if known is not None and known[0] is node:
        number: int = known[1]
        return number
    # Threads that share a graph may both assign a number to a kind; only one of them stays.
    numbers, fresh = graph.cache.setdefault("own kinds", (dict[Hashable, int](), count()))
    number = numbers.setdefault(node.kind(lambda _: Ref), next(fresh))
    graph.cache["own", node.name] = node, number
    return number
