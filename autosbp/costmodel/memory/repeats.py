"""Repeated blocks of a program, most of which a dry run leaves out.

A run of items that comes again and again, one copy behind the other, changes what is there by as much each time, and takes as
much meanwhile. So the first three copies and the last one are run, and what those between would have come to is added: what
is there grows along a straight line, which has its most at one of its ends. That the second copy and the third are alike is
looked at in every pass; where they are not, all has to be run.

Copies are found in the program itself: items that do the same to values as far behind them, to parameters that are stored
and read alike, and that are the last to read as much.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

from autosbp.costmodel.memory.tensors import GRADIENTS, Meter, Tensor
from autosbp.graph.ir import LogicalGraph, Node, Parameter, Ref
from autosbp.plan import Strategy
from autosbp.repetition import Keys, likely_periods, numbered, runs
from autosbp.sbp.parameters import ParameterFlow
from autosbp.sbp.program import Box, Item, Op
from autosbp.sbp.recompute import ReadKey, made_by

BEFORE = 3
"""Copies that are run before those that are left out: two that are compared, and one to come to them."""
LEAST = 2
"""Fewer copies than this are not left out."""
COPIES = BEFORE + LEAST + 1
MOST_PERIODS = 8
"""Lengths of a copy that are tried."""
Bytes = dict[str, int]


class UnlikeError(Exception):
    """Copies took different amounts."""


@dataclass(frozen=True, slots=True)
class Skip:
    """``count`` copies of ``period`` items each that are left out, from item ``first`` on; those before begin at ``begin``."""

    begin: int
    period: int
    count: int

    @property
    def first(self) -> int:
        return self.begin + BEFORE * self.period

    @property
    def end(self) -> int:
        """The first item of the last copy, which is run."""
        return self.first + self.count * self.period


@dataclass(frozen=True, slots=True)
class Mark:
    """A place between two copies: before the second or the third, or, the ``last``, where copies are left out."""

    skip: Skip
    number: int

    @property
    def is_last(self) -> bool:
        return self.number == BEFORE - 1


class Repeats:
    """What is left out of a program."""

    def __init__(self, skips: Sequence[Skip], items: Sequence[Item]) -> None:
        self.skips = tuple(skips)
        self.marks = {
            skip.begin + (number + 1) * skip.period: Mark(skip, number) for skip in skips for number in range(BEFORE)
        }
        self._items = items
        self._handed: dict[Skip, Sequence[Hashable]] = {}

    def check(self, mark: Mark, values: Mapping[ReadKey, Tensor]) -> None:
        """Raise ``UnlikeError`` where the third copy hands on what the second did in another order of memory. All that a copy
        does follows from what it is handed, so that once two hand on the same all others do, too."""
        if not mark.number:
            return
        end = mark.skip.begin + (mark.number + 1) * mark.skip.period
        handed = [
            (end - at, place, values[key].shape, values[key].strides, values[key].is_view, values[key].node is None)
            for at in range(end - mark.skip.period, end)
            for place, key in enumerate(made_by(self._items[at]))
            if key in values
        ]
        if self._handed.setdefault(mark.skip, handed) != handed:
            raise UnlikeError

    def parameters_of_copy(self, skip: Skip) -> set[str]:
        """Names, among others, of what the last copy before those that are left out reads as it is stored."""
        items = self._items[skip.first - skip.period : skip.first]
        return {read.name for item in items for read in _reads(item) if isinstance(read, Ref)}

    @staticmethod
    def gathered(skip: Skip, flow: ParameterFlow) -> Mapping[int, int]:
        """How many copies of each message of gathered parameters are left out."""
        items = flow.items[skip.first : skip.end]
        return Counter(flow.place[item.key][0] for item in items if isinstance(item, Box) and item.key in flow.place)

    def move_on(self, skip: Skip, values: dict[ReadKey, Any]) -> None:
        """Give what the last copy made the names of what the last that is left out would have made."""
        for at in range(skip.begin, skip.first):
            moved = None
            for place, key in enumerate(made_by(self._items[at])):
                if key in values:
                    moved = moved or made_by(self._items[at + skip.count * skip.period])
                    values[moved[place]] = values.pop(key)


@dataclass(frozen=True, slots=True)
class _Region:
    """Bytes by purpose at its begin, when they are most, and at its end, between two marks of one phase."""

    opened: Mark | None
    closed: Mark | None
    start: Bytes
    peak: Bytes
    end: Bytes


class Regions:
    """What a meter counts between marks, and with what is left out. ``added`` is what that comes to by now."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        self.added: Bytes = {}
        self._found: list[_Region] = []
        self._opened: Mark | None = None
        self._start = dict(meter.by_purpose)

    @property
    def live(self) -> int:
        """Bytes that would be there, as of the last phase."""
        return self.meter.live + sum(self.added.values())

    def begin_anew(self, gradients: int) -> None:
        """Forget what was counted since the last phase; of gradients so many bytes more are there from now on."""
        meter = self.meter
        self.added = _sum(self.added, {GRADIENTS: gradients}) if gradients else self.added
        self._found, self._opened, self._start = [], None, dict(meter.by_purpose)
        meter.peak, meter.at_peak = meter.live, dict(meter.by_purpose)

    def pass_by(self, mark: Mark | None) -> None:
        """A region ends, and the next begins."""
        meter = self.meter
        now = dict(meter.by_purpose)
        self._found.append(_Region(self._opened, mark, self._start, meter.at_peak, now))
        self._opened, self._start = mark, now
        meter.peak, meter.at_peak = meter.live, dict(now)

    def fullest(self) -> Counter[str]:
        """By purpose, when all was most since the last call; raises ``UnlikeError``."""
        self.pass_by(None)
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


def _change_of_copies(skip: Skip, regions: Sequence[_Region]) -> tuple[Bytes, Bytes]:
    """What is there more behind a copy than before it, and when there is most."""
    found = []
    for region in regions:
        ends = {each.number for each in (region.opened, region.closed) if each is not None and each.skip is skip}
        if len(ends) == 2:  # both sides of it
            found.append((_sum(region.end, region.start, -1), _sum(region.peak, region.start, -1)))
    if len(found) != BEFORE - 1 or any(_unlike(*pair) for pair in zip(*found, strict=True)):
        raise UnlikeError
    return found[0]


def _unlike(one: Bytes, other: Bytes) -> bool:
    return any(one.get(name, 0) != other.get(name, 0) for name in {*one, *other})


def _sum(one: Bytes, other: Bytes, times: int = 1) -> Bytes:
    return {name: one.get(name, 0) + times * other.get(name, 0) for name in {**one, **other}}


def find_repeats(
    graph: LogicalGraph,
    strategy: Strategy,
    flow: ParameterFlow,
    last_reader: Mapping[int, Sequence[ReadKey]],
    outputs: Sequence[ReadKey],
    deferring: frozenset[str] = frozenset(),
) -> Repeats:
    """What may be left out of a program.

    Args:
        last_reader: after which item which values have no reader left.
        outputs: what is there when all is over.
        deferring: ops whose weights' gradients are a pass of their own.
    """
    ops = np.array([-1 if isinstance(item, Box) else _own(graph, item.node) for item in flow.items], dtype=np.int64)
    periods = [period for period in likely_periods(ops, MOST_PERIODS) if runs(ops, period, COPIES)]
    if not periods:  # not even by their ops
        return Repeats((), flow.items)
    kinds = _Kinds(graph, strategy, flow, last_reader, outputs, deferring)
    numbers = kinds.numbers()
    best: tuple[Skip, ...] = ()
    saved = 0
    for period in periods:
        skips = tuple(kinds.skips(numbers, period))
        items = sum(skip.count * skip.period for skip in skips)
        if items > saved:
            best, saved = skips, items
    return Repeats(best, flow.items)


class _Kinds:
    """The items of a program, told apart by all that a dry run of them depends on."""

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
        self.made = {key: at for at, item in enumerate(flow.items) for key in made_by(item)}
        self.read_at: dict[ReadKey, list[int]] = {Ref(name): [] for name in self.leaves}  # of parameters
        for at, item in enumerate(flow.items):
            for read in _reads(item):
                if read in self.read_at:
                    self.read_at[read].append(at)
        data = Counter(read for item in flow.items for read in _reads(item) if self._is_data(read))
        self.shared = {read for read, readers in data.items() if readers > 1}  # it may be by all copies
        self.begins = {segment.first for segment in flow.segments}
        self.ends = {segment.last for segment in flow.segments}
        self.inside = {at for segment in flow.segments for at in range(segment.first + 1, segment.last + 1)}
        self.before: dict[str, int] = {}  # where each parameter was read last

    def numbers(self) -> Keys:
        """Equal for items that are alike."""
        flow = self.flow
        # Messages are sent for one after the other; and of one that is kept for backward those copies stay that were read.
        alone = {*flow.forward_sends, *flow.backward_sends, *flow.recompute_sends}
        alone |= {self.made[box.key] for gather in flow.gathers if gather.kept for box in gather.boxes}
        return numbered(("alone", at) if at in alone else self._kind(at, item) for at, item in enumerate(flow.items))

    def _kind(self, at: int, item: Item) -> Hashable:
        done = tuple(self._place(at, key) for key in self.last_reader.get(at, ()))
        flags = at in self.flow.passing, at in self.begins, at in self.ends, at in self.inside
        if isinstance(item, Box):
            meta = self.graph.meta(item.ref)
            message = self.flow.place.get(item.key, (-1, 0))[0]
            own: Hashable = (
                item.src, item.dst, item.group, item.steps, item.differentiable, item.data, meta, message,
            )  # fmt: skip
        else:
            name = item.node.name
            own = _own(self.graph, item.node), item.signature, name in self.graph.differentiable, name in self.deferring
        return own, flags, done, tuple([self._place(at, read) for read in _reads(item)])

    def _place(self, at: int, key: ReadKey) -> Hashable:
        """How far behind a value was made, or what else it is."""
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
        return (isinstance(item, Op) and item.signature is None) or (isinstance(item, Box) and item.data)

    def _parameter(self, leaf: Parameter) -> Hashable:
        return leaf.meta, leaf.trained, self.strategy.parameters[leaf.name], len(self.read_at[Ref(leaf.name)])

    def skips(self, numbers: Keys, period: int) -> Iterator[Skip]:
        """Where copies of so many items follow each other, those that may be left out."""
        for begin, end, _ in runs(numbers, period, COPIES):
            while begin in self.inside:  # copies begin between segments
                begin += 1
            skip = Skip(begin, period, (end - begin) // period - BEFORE - 1)
            if skip.count >= LEAST and self._is_handed_on(skip):
                yield skip

    def _is_handed_on(self, skip: Skip) -> bool:
        """Whether nothing behind reads of the copies anything but what the last ones made, and nothing else what they read of
        parameters."""
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
    return (item.ref,) if isinstance(item, Box) else item.reads


def _own(graph: LogicalGraph, node: Node) -> int:
    """The same for ops that differ in names alone."""
    known = graph.derived.get(("own", node.name))
    if known is not None and known[0] is node:
        number: int = known[1]
        return number
    # Threads that share a graph may both find a number for a kind: one of them stays.
    numbers, fresh = graph.derived.setdefault("own kinds", (dict[Hashable, int](), count()))
    number = numbers.setdefault(node.kind(lambda _: Ref), next(fresh))
    graph.derived["own", node.name] = node, number
    return number
