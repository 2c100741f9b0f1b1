"""How many of the repeated blocks each stage has room for in a step of so many seconds, under the memory limit.

A stage that holds n of the repeated blocks works n times what one block takes in all microbatches, and holds n times its
state and what k microbatches of it keep, k being those that every schedule has in flight there. By Lagrangian duality it
has room for no more blocks than

    n <= (T - waits + price * limit) / min over layouts of (seconds + price * (state + k * kept))

at any price. A step of T seconds is out of reach where the stages, together, have no room for all blocks. Every block is
free to be stored and used in any layout, so that the bound holds for all mixtures.

Waits: stage s begins when those before it are done with the forward pass of the first microbatch, and these go on with the
backward pass of the last one behind it, beside what it does once a step. With one chunk a stage they pass all of their
blocks, with several one each at the least, but for the first, which may be what comes before the blocks; where weight
gradients are put off, forward waits alone are sure (Narayanan et al. 2021, section 2.2; Qi et al. 2023, section 2.1). Besides,
stages have to wait for each other in sum (``bounds.bubble``): seconds in which all of them have room for fewer blocks, each of
which would take no more than the dearest one does. Schedules that wait for messages have room for these too (``bounds.sends``).

Memory: of blocks that are kept, all that autograd keeps, each tensor once; of those recomputed, what runs are handed; where
all are, one whole block besides, as there is when backward begins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property

import numpy as np

from autosbp.handed import handed_over
from autosbp.schedules import ONE_F_ONE_B, Waits
from autosbp.search.bounds.mixtures import best_price, lower_edge
from autosbp.search.bounds.moments import Moment, moments, prices_of
from autosbp.search.bounds.sends import Sends
from autosbp.search.bounds.stage_costs import Part
from autosbp.search.bounds.stage_values import Prices
from autosbp.search.stages.pipelines import Shape, shapes

ROUNDING = 1e-9
MOST_PRICES = 6
"""Prices tried at once, for one number of microbatches in flight."""
NEAR, NEAR_LARGE = 0.01, 0.1
"""So near to a price that was tried none is tried again; where parts are large."""
PRECISION = 1e-4
"""Of a bound."""


@handed_over
@dataclass(frozen=True)
class Recomputed:
    """What may be recomputed: blocks are ``kept``, or made ``again``, or some of them this and some that; no more than ``most``
    are made again together, of which the first one's input is kept."""

    kept: bool
    again: bool
    most: int = 1


@dataclass(frozen=True)
class Wanted:
    """What the strategies of a structure may be: how parameters are stored, what is recomputed, schedules; and the bytes of a
    device."""

    storages: tuple[str, ...]
    recomputed: tuple[Recomputed, ...]
    schedules: tuple[str, ...]
    limit: int


Hints = dict[tuple[Recomputed, int, bool], float]
"""Prices that were good, by what may be recomputed and how many microbatches are in flight."""


_Key = tuple[Recomputed, Moment, float]
Parts = tuple[Part, Part, Part]
"""What is before the blocks, a block, and what is behind."""


class Effort(IntEnum):
    """What is asked of prices: nothing, as time alone may be too short; those known to be good, or one where none is; or better
    ones."""

    TIME, KNOWN, REFINED = range(3)


class BlockRoom:
    """How many blocks stages have room for. ``made`` gives parts as they are, or recomputed, which take no less time;
    ``micro_batch`` is the size that their costs are of."""

    def __init__(
        self, made: Callable[[bool], Parts], blocks: int, stages: int, micro_batch: int, batch: int,
        wanted: Wanted, hints: Hints, sends: Sends,
    ) -> None:  # fmt: skip
        self._made, self._parts = made, dict[bool, Parts]()
        self.blocks, self.stages = blocks, stages
        self.micro_batch, self.batch, self.wanted = micro_batch, batch, wanted
        self.count = batch // micro_batch
        self.hints, self.sends = hints, sends
        self._effort = Effort.REFINED
        self._counts = self.count, self.count
        self._tried: dict[_Key, dict[float, float]] = {}
        self._edges: dict[_Key, tuple[tuple[int, ...], list[tuple[float, float]]]] = {}

    def parts(self, again: bool) -> Parts:
        """As they are, or recomputed."""
        if again not in self._parts:
            self._parts[again] = self._made(again)
        return self._parts[again]

    @property
    def _any(self) -> tuple[float, float]:
        """The capacity of a stage for blocks that take none of its room."""
        return 2.0 * (self.blocks + 1), 0.0

    @cached_property
    def _near(self) -> float:
        return NEAR_LARGE if any(part.is_large for part in self.parts(again=False)) else NEAR

    def least(self, low: float, high: float, sizes: Sequence[int]) -> float:
        """The least seconds that are not out of reach for microbatches of these sizes; known to be between two."""
        if self.is_shut(high, sizes):
            return high
        while high - low > PRECISION * high:
            middle = (low + high) / 2
            low, high = (middle, high) if self.is_shut(middle, sizes) else (low, middle)
        return low

    def is_shut(self, seconds: float, sizes: Sequence[int]) -> bool:
        """Whether no microbatch of these sizes allows for such a step; at prices known to be good, or better ones."""
        share, every = sizes[-1] / self.micro_batch, {Shape(ONE_F_ONE_B, 1)}
        self._counts = self.batch // sizes[0], self.batch // sizes[-1]
        if self.stages > 1:
            counts = [self.batch // size for size in sizes]
            every = {shape for count in counts for shape in shapes(self.stages, count, self.wanted.schedules)}
            every = {shape for shape in every if self.stages * shape.virtual <= self.sends.most_chunks}
        seconds *= 1 - ROUNDING
        return all(
            self._is_short(seconds, shape, share)
            for shape in sorted(every, key=lambda shape: (shape.schedule.name, -shape.virtual))
        )

    def _is_short(self, seconds: float, shape: Shape, share: float) -> bool:
        """Whether stages have too little room with a schedule: too little time, or too little memory, too, at prices that are
        known to be good, or better ones."""
        if self.sends.busiest_s(shape) >= seconds:
            return True
        for self._effort in Effort:
            if self._held(seconds, shape, share) < self.blocks or self._waiting(seconds, shape, share):
                return True
        return False

    def _held(self, seconds: float, shape: Shape, share: float) -> int:
        """Blocks that the stages have room for, not more than there are; ``share`` of a microbatch is kept and waited for."""
        held = 0
        for stage in range(self.stages):
            own_s = seconds - self.sends.of_stage_s(shape, stage, self._counts)
            own = min(
                self._most(own_s - waits, shape, stage, share, once, self.blocks - held)
                for once, waits in self._waits(shape, stage, held * share, share)
            )
            if stage == 0 and own < 0:
                return -1
            # Blocks here cost those behind less room than they take, so that as many as there is room for are best; and
            # where there is room for less than none, fewer ahead would leave no more.
            held = min(held + math.floor(own * (1 + ROUNDING)), self.blocks)
        return held

    def _most(self, seconds: float, shape: Shape, stage: int, share: float, once: bool, enough: int) -> float:
        """Blocks that one stage has room for with the best of what may be recomputed; any number where that is enough."""
        most, ceiling = -math.inf, self._by_time(seconds, stage, once)[0]
        for each in self.wanted.recomputed:
            most = max(most, self._capacity(seconds, shape, stage, share, each, once)[0])
            if most >= min(enough, ceiling):
                break
        return min(most, ceiling)

    def _waiting(self, seconds: float, shape: Shape, share: float) -> bool:
        """Whether stages that hold all blocks have too little time to wait for each other."""
        if self.stages == 1:
            return False
        found = [waits for waits in shape.schedule.waits(self.stages, shape.virtual) if not waits.put_off]
        return any(
            self._wait_too_long(found, once, seconds, shape, share) for once in sorted({each.once for each in found})
        )

    def _wait_too_long(self, found: Sequence[Waits], once: bool, seconds: float, shape: Shape, share: float) -> bool:
        rooms = [self._room_of(seconds, shape, stage, share, once) for stage in range(self.stages)]
        if any(room == self._any for each in rooms for room in each):
            return False  # blocks that take none of a room leave all of it
        own = [max(0, math.floor(max(most for most, _ in room) * (1 + ROUNDING))) for room in rooms]
        if sum(own) < self.blocks:
            return True
        # With as many blocks as there is room for, some seconds are left; each block fewer leaves what it takes.
        left_s = sum(
            max((most - held) * each_s for most, each_s in room) for room, held in zip(rooms, own, strict=True)
        )
        left_s += (sum(own) - self.blocks) * max(each_s for room in rooms for _, each_s in room)
        # Of any 1, 2, ... stages, the blocks that the others have no room for.
        least = np.maximum(self.blocks - np.cumsum(sorted(own, reverse=True))[-2::-1], 0.0)
        block = self.parts(again=False)[1]
        back_s = block.lean_s if shape.schedule.splits_backward else block.backward_s
        sides = [(each.forward, each.backward) for each in found if each.once == once]
        waited_s = max(
            forward.least_s(self.blocks * block.forward_s, least * block.forward_s)
            + backward.least_s(self.blocks * back_s, least * back_s)
            for forward, backward in sides
        )
        return share * waited_s * (1 - ROUNDING) > left_s

    def _room_of(self, seconds: float, shape: Shape, stage: int, share: float, once: bool) -> list[tuple[float, float]]:
        """The capacity of a stage, with what may be recomputed; of time alone, where memory takes nothing of it."""
        own_s = seconds - self.sends.of_stage_s(shape, stage, self._counts)
        by_time, rooms = self._by_time(own_s, stage, once), list[tuple[float, float]]()
        for each in self.wanted.recomputed:
            rooms.append(self._capacity(own_s, shape, stage, share, each, once))
            if rooms[-1][0] >= by_time[0]:
                return [by_time]
        return rooms

    def _waits(self, shape: Shape, stage: int, held: float, share: float) -> list[tuple[bool, float]]:
        """Seconds that a stage waits for those before it, and whether what it does once a step comes on top."""
        block = self.parts(again=False)[1]
        blocks = held if shape.virtual == 1 else max(stage - 1, 0) * share
        found = [(True, blocks * block.forward_s)]
        if stage and not shape.schedule.splits_backward:
            found.append((False, blocks * block.shortest_s))
        return found

    def _capacity(
        self, seconds: float, shape: Shape, stage: int, share: float, recomputed: Recomputed, once: bool
    ) -> tuple[float, float]:
        """Blocks that one stage has room for, and the priced seconds that each takes of that room."""
        found = moments(shape.schedule, self.stages, stage, self.count, once=once)
        by_time = self._by_time(seconds, stage, once)
        if self._effort is Effort.TIME or (recomputed.kept and self._fits(by_time[0], stage, share, found)):
            return by_time
        ends, limit = self._ends(stage, again=not recomputed.kept), float(self.wanted.limit)
        if not recomputed.kept:  # when backward begins, a block is there whole
            limit -= share * self.parts(again=False)[1].least_kept
        rooms = []
        for moment in found:
            price, each = self._price(recomputed, moment, seconds, share, limit)
            prices = prices_of(price, moment, share)
            left = seconds - sum(part.at(prices).least_s for part in ends) + price * limit
            if each > 0:
                rooms.append((left / each, each))
        return min(rooms, default=self._any)

    def _ends(self, stage: int, *, again: bool) -> list[Part]:
        """What a stage holds beside blocks."""
        before, _, behind = self.parts(again)
        return [part for part, here in ((before, stage == 0), (behind, stage == self.stages - 1)) if here]

    def _by_time(self, seconds: float, stage: int, once: bool) -> tuple[float, float]:
        """As ``_capacity``, of blocks that are kept, if bytes cost nothing. With some of them recomputed a stage does no more,
        and has no more time left."""
        none = Prices(0.0, 0.0, 0.0, once)
        each = self.parts(again=False)[1].at(none).least_s
        left = seconds - sum(part.at(none).least_s for part in self._ends(stage, again=False))
        return (left / each, each) if each > 0 else self._any

    def _fits(self, blocks: float, stage: int, share: float, found: Sequence[Moment]) -> bool:
        """Whether so many blocks, or all there are, are within the limit in the quickest layouts: then no price leaves less
        room than time does, as these layouts cost no more than the time and the bytes that there are."""
        for moment in found:
            none, held = Prices(0.0, 0.0, 0.0, moment.once), max(min(blocks, float(self.blocks)), 0.0)
            taken = [(part.at(none), 1.0) for part in self._ends(stage, again=False)]
            taken.append((self.parts(again=False)[1].at(none), held))
            kept = moment.in_flight * share
            bytes_ = sum(
                count * (each.stays + moment.gradients * each.gradients + kept * each.kept) for each, count in taken
            )
            if bytes_ > self.wanted.limit:
                return False
        return True

    def _price(
        self, recomputed: Recomputed, moment: Moment, seconds: float, share: float, limit: float
    ) -> tuple[float, float]:
        """A price of memory at which few blocks find room, and the least priced seconds of one.

        Of the layouts that are known, a quick one that is too large and a small one that is too slow cost the same at the
        best price. If another costs less there, it becomes known, and the best price is another one."""
        tried = self._tried.setdefault((recomputed, moment, share), {})
        hint = self.hints.get((recomputed, moment.in_flight, moment.once))
        if hint is not None and not tried:
            tried[hint] = self._block(prices_of(hint, moment, share), recomputed)
        for _ in range(MOST_PRICES if self._effort is Effort.REFINED or not tried else 0):
            price = best_price(self._edge(recomputed, moment, share), seconds, limit)
            if any(abs(price - other) <= self._near * other for other in tried):
                break
            tried[price] = self._block(prices_of(price, moment, share), recomputed)
        best = min(tried.items(), key=lambda entry: (seconds + entry[0] * limit) / max(entry[1], 1e-30))
        self.hints[recomputed, moment.in_flight, moment.once] = best[0]
        return best

    def _edge(self, recomputed: Recomputed, moment: Moment, share: float) -> list[tuple[float, float]]:
        """Bytes and seconds of the blocks known that are the least at some price, ever fewer bytes."""
        counts = tuple(len(self.parts(again)[1].known(once=moment.once)) for again in (False, recomputed.again))
        key = recomputed, moment, share
        if self._edges.get(key, ((), []))[0] != counts:
            found = []
            for again, interval, wanted in ((False, 1, recomputed.kept), (True, recomputed.most, recomputed.again)):
                kept = moment.in_flight * share / interval
                if wanted:
                    found += [
                        (each.seconds, each.stays + moment.gradients * each.gradients + kept * each.kept)
                        for each in self.parts(again)[1].known(once=moment.once)
                    ]
            self._edges[key] = counts, lower_edge(found)
        return self._edges[key][1]

    def _block(self, prices: Prices, recomputed: Recomputed) -> float:
        """The least priced seconds of a block."""
        found = []
        if recomputed.kept:
            found.append(self.parts(again=False)[1].at(prices).least_s)
        if recomputed.again:
            less = replace(prices, kept=prices.kept / recomputed.most)
            found.append(self.parts(again=True)[1].at(less).least_s)
        return min(found)
