"""Upper bound on the repeated blocks that each stage can hold in a given step time, under the memory limit.

A stage with n of the repeated blocks works n times the seconds of one block over all microbatches. It holds n times a
block's state, and n times the activations that k microbatches of a block save, where k is the number that every
schedule has in flight there. By Lagrangian duality, at any multiplier ``price`` of memory in seconds a byte, it holds
at most

    n <= (T - waits + price * limit) / min over layouts of (seconds + price * (state + k * kept))

blocks. A step of T seconds is impossible if all stages together cannot hold all blocks. Every block chooses its layout
and parameter sharding freely, so the bound holds for all mixtures.

Waits: stage s begins after all earlier stages have run the forward pass of the first microbatch. After its last
backward pass, the earlier stages still run theirs, overlapped with the once-a-step work of stage s. With one chunk a
stage, these passes go through all blocks of the earlier stages. With several chunks they go through at least one block
a stage, except for the first stage, whose first chunk may end before the blocks. If weight gradients are deferred, only
the forward waits are certain (Narayanan et al. 2021, section 2.2; Qi et al. 2023, section 2.1). In addition, the sum of
all waits (``bounds.bubble_bound``) must fit into the time that the stages have left; each block fewer frees at most the
time of the most expensive block. Schedules that wait for messages also need the time of ``bounds.p2p_bound``.

Memory: blocks without activation checkpointing hold all that autograd saves, each tensor once; checkpointed blocks hold
the inputs of their segments. If all blocks are checkpointed, one whole block comes on top, because one block is held
whole when backward begins."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property

import numpy as np

from autosbp.plan.schedules import ONE_F_ONE_B, PathWaits
from autosbp.search.bounds.convex_hull import lower_hull, tightest_multiplier
from autosbp.search.bounds.memory_instants import MemoryInstant, memory_instants, multipliers_at
from autosbp.search.bounds.p2p_bound import P2PBound
from autosbp.search.bounds.stage_costs import StageSubproblem
from autosbp.search.bounds.stage_subproblem_values import MemoryMultipliers
from autosbp.search.stages.schedule_candidates import ScheduleShape, schedule_shapes
from autosbp.utils.serialization import serializable

ROUNDING = 1e-9
MAX_MULTIPLIERS = 6
"""Multipliers tried in one call, for one number of microbatches in flight."""
MULTIPLIER_TOLERANCE, MULTIPLIER_TOLERANCE_LARGE = 0.01, 0.1
"""Relative distance from a known multiplier within which no new one is tried; the second is for large parts."""
PRECISION = 1e-4
"""Relative precision of a bound."""


@serializable
@dataclass(frozen=True)
class CheckpointingChoice:
    """Which blocks may be checkpointed.

    ``kept``: blocks without activation checkpointing are allowed. ``again``: checkpointed blocks are allowed. If both
    are true, blocks may differ. At most ``most`` consecutive blocks form one segment, which saves the input of its
    first block."""

    kept: bool
    again: bool
    most: int = 1


@dataclass(frozen=True)
class BoundedStrategies:
    """Strategies that a bound covers: parameter shardings, checkpointing choices, schedules; and bytes of a device."""

    parameter_shardings: tuple[str, ...]
    recomputed: tuple[CheckpointingChoice, ...]
    schedules: tuple[str, ...]
    limit: int


MultiplierHints = dict[tuple[CheckpointingChoice, int, bool], float]
"""Good Lagrange multipliers of memory, by checkpointing choice, microbatches in flight, and ``MemoryInstant.once``."""


_Key = tuple[CheckpointingChoice, MemoryInstant, float]
Parts = tuple[StageSubproblem, StageSubproblem, StageSubproblem]
"""The part before the blocks, one block, and the part after the blocks."""


class MultiplierEffort(IntEnum):
    """Effort spent on Lagrange multipliers of memory.

    ``TIME``: none, as time alone may rule a step out. ``KNOWN``: only known good multipliers, or one new multiplier if
    there are none. ``REFINED``: search for better multipliers."""

    TIME, KNOWN, REFINED = range(3)


class BlockCapacity:
    """Number of blocks that the stages can hold.

    ``made(again)`` builds the parts without (False) or with (True) activation checkpointing, which never makes them
    faster. ``micro_batch`` is the microbatch size that their costs are of."""

    def __init__(
        self, made: Callable[[bool], Parts], blocks: int, stages: int, micro_batch: int, batch: int,
        wanted: BoundedStrategies, hints: MultiplierHints, sends: P2PBound,
    ) -> None:  # fmt: skip
        self._build_parts, self._parts = made, dict[bool, Parts]()
        self.blocks, self.stages = blocks, stages
        self.micro_batch, self.batch, self.strategies = micro_batch, batch, wanted
        self.count = batch // micro_batch
        self.hints, self.sends = hints, sends
        self._effort = MultiplierEffort.REFINED
        self._counts = self.count, self.count
        self._tried: dict[_Key, dict[float, float]] = {}
        self._edges: dict[_Key, tuple[tuple[int, ...], list[tuple[float, float]]]] = {}

    def parts(self, again: bool) -> Parts:
        """The parts without (False) or with (True) activation checkpointing."""
        if again not in self._parts:
            self._parts[again] = self._build_parts(again)
        return self._parts[again]

    @property
    def _unbounded_capacity(self) -> tuple[float, float]:
        """Capacity of a stage for blocks that cost nothing."""
        return 2.0 * (self.blocks + 1), 0.0

    @cached_property
    def _multiplier_tolerance(self) -> float:
        return (
            MULTIPLIER_TOLERANCE_LARGE
            if any(part.is_large for part in self.parts(again=False))
            else MULTIPLIER_TOLERANCE
        )

    def least(self, low: float, high: float, sizes: Sequence[int]) -> float:
        """Least step time that cannot be ruled out for these sizes; it is between ``low`` and ``high`` seconds."""
        if self.is_infeasible(high, sizes):
            return high
        while high - low > PRECISION * high:
            middle = (low + high) / 2
            low, high = (middle, high) if self.is_infeasible(middle, sizes) else (low, middle)
        return low

    def is_infeasible(self, seconds: float, sizes: Sequence[int]) -> bool:
        """Whether a step of ``seconds`` is impossible for every microbatch size of ``sizes`` (largest first)."""
        share, every = sizes[-1] / self.micro_batch, {ScheduleShape(ONE_F_ONE_B, 1)}
        self._counts = self.batch // sizes[0], self.batch // sizes[-1]
        if self.stages > 1:
            counts = [self.batch // size for size in sizes]
            every = {
                shape for count in counts for shape in schedule_shapes(self.stages, count, self.strategies.schedules)
            }
            every = {shape for shape in every if self.stages * shape.virtual <= self.sends.most_chunks}
        seconds *= 1 - ROUNDING
        return all(
            self._cannot_hold_all_blocks(seconds, shape, share)
            for shape in sorted(every, key=lambda shape: (shape.schedule.name, -shape.virtual))
        )

    def _cannot_hold_all_blocks(self, seconds: float, shape: ScheduleShape, share: float) -> bool:
        """Whether the stages cannot hold all blocks with a schedule.

        Tests time alone first, then time and memory at known multipliers, then at refined multipliers."""
        if self.sends.busiest_stage_s(shape) >= seconds:
            return True
        for self._effort in MultiplierEffort:
            if self._total_blocks(seconds, shape, share) < self.blocks or self._waiting(seconds, shape, share):
                return True
        return False

    def _total_blocks(self, seconds: float, shape: ScheduleShape, share: float) -> int:
        """Blocks that the stages can hold, at most all; -1 if the first stage cannot hold even its other part.

        Args:
            share: part of a microbatch, whose costs are known, that is saved and waited for.
        """
        held = 0
        for stage in range(self.stages):
            own_s = seconds - self.sends.stage_wait_s(shape, stage, self._counts)
            own = min(
                self._stage_blocks(own_s - waits, shape, stage, share, once, self.blocks - held)
                for once, waits in self._waits(shape, stage, held * share, share)
            )
            if stage == 0 and own < 0:
                return -1
            # Each block here takes less room from later stages than it needs itself, so as many as possible is best. If
            # the room is negative, fewer blocks ahead would not help.
            held = min(held + math.floor(own * (1 + ROUNDING)), self.blocks)
        return held

    def _stage_blocks(
        self, seconds: float, shape: ScheduleShape, stage: int, share: float, once: bool, enough: int
    ) -> float:
        """Blocks that one stage can hold with its best checkpointing choice; stops early once ``enough`` fit."""
        most, ceiling = -math.inf, self._capacity_by_time(seconds, stage, once)[0]
        for each in self.strategies.recomputed:
            most = max(most, self._capacity(seconds, shape, stage, share, each, once)[0])
            if most >= min(enough, ceiling):
                break
        return min(most, ceiling)

    def _waiting(self, seconds: float, shape: ScheduleShape, share: float) -> bool:
        """Whether stages that hold all blocks have too little time left to wait for each other."""
        if self.stages == 1:
            return False
        found = [waits for waits in shape.schedule.waits(self.stages, shape.virtual) if not waits.put_off]
        return any(
            self._exceeds_slack(found, once, seconds, shape, share) for once in sorted({each.once for each in found})
        )

    def _exceeds_slack(
        self, found: Sequence[PathWaits], once: bool, seconds: float, shape: ScheduleShape, share: float
    ) -> bool:
        rooms = [self._stage_capacities(seconds, shape, stage, share, once) for stage in range(self.stages)]
        if any(room == self._unbounded_capacity for each in rooms for room in each):
            return False  # blocks that cost nothing leave all of the room
        own = [max(0, math.floor(max(most for most, _ in room) * (1 + ROUNDING))) for room in rooms]
        if sum(own) < self.blocks:
            return True
        # At full capacity some seconds are left; each block fewer frees its own seconds.
        left_s = sum(
            max((most - held) * each_s for most, each_s in room) for room, held in zip(rooms, own, strict=True)
        )
        left_s += (sum(own) - self.blocks) * max(each_s for room in rooms for _, each_s in room)
        # Of any 1, 2, ... stages, the fewest blocks: those that the other stages cannot hold.
        least = np.maximum(self.blocks - np.cumsum(sorted(own, reverse=True))[-2::-1], 0.0)
        block = self.parts(again=False)[1]
        back_s = block.backward_without_wgrad_s if shape.schedule.splits_backward else block.backward_s
        sides = [(each.forward, each.backward) for each in found if each.once == once]
        waited_s = max(
            forward.lower_bound_s(self.blocks * block.forward_s, least * block.forward_s)
            + backward.lower_bound_s(self.blocks * back_s, least * back_s)
            for forward, backward in sides
        )
        return share * waited_s * (1 - ROUNDING) > left_s

    def _stage_capacities(
        self, seconds: float, shape: ScheduleShape, stage: int, share: float, once: bool
    ) -> list[tuple[float, float]]:
        """Capacity of a stage per checkpointing choice; the capacity by time alone if memory does not reduce it."""
        own_s = seconds - self.sends.stage_wait_s(shape, stage, self._counts)
        by_time, rooms = self._capacity_by_time(own_s, stage, once), list[tuple[float, float]]()
        for each in self.strategies.recomputed:
            rooms.append(self._capacity(own_s, shape, stage, share, each, once))
            if rooms[-1][0] >= by_time[0]:
                return [by_time]
        return rooms

    def _waits(self, shape: ScheduleShape, stage: int, held: float, share: float) -> list[tuple[bool, float]]:
        """Seconds that a stage waits for earlier ones, each with whether its once-a-step work comes on top."""
        block = self.parts(again=False)[1]
        blocks = held if shape.virtual == 1 else max(stage - 1, 0) * share
        found = [(True, blocks * block.forward_s)]
        if stage and not shape.schedule.splits_backward:
            found.append((False, blocks * block.least_microbatch_s))
        return found

    def _capacity(
        self,
        seconds: float,
        shape: ScheduleShape,
        stage: int,
        share: float,
        recomputed: CheckpointingChoice,
        once: bool,
    ) -> tuple[float, float]:
        """Blocks that one stage can hold, and the penalised seconds of each."""
        found = memory_instants(shape.schedule, self.stages, stage, self.count, once=once)
        by_time = self._capacity_by_time(seconds, stage, once)
        if self._effort is MultiplierEffort.TIME or (
            recomputed.kept and self._fits_unpenalised(by_time[0], stage, share, found)
        ):
            return by_time
        ends, limit = self._other_parts(stage, again=not recomputed.kept), float(self.strategies.limit)
        if not recomputed.kept:  # when backward begins, one block is held whole
            limit -= share * self.parts(again=False)[1].least_kept
        rooms = []
        for moment in found:
            price, each = self._price(recomputed, moment, seconds, share, limit)
            prices = multipliers_at(price, moment, share)
            left = seconds - sum(part.at(prices).least_s for part in ends) + price * limit
            if each > 0:
                rooms.append((left / each, each))
        return min(rooms, default=self._unbounded_capacity)

    def _other_parts(self, stage: int, *, again: bool) -> list[StageSubproblem]:
        """The parts that a stage holds in addition to blocks."""
        before, _, behind = self.parts(again)
        return [part for part, here in ((before, stage == 0), (behind, stage == self.stages - 1)) if here]

    def _capacity_by_time(self, seconds: float, stage: int, once: bool) -> tuple[float, float]:
        """``_capacity`` of blocks without activation checkpointing if memory were free.

        A stage with checkpointed blocks does at least as much work, so it cannot hold more."""
        none = MemoryMultipliers(0.0, 0.0, 0.0, once)
        each = self.parts(again=False)[1].at(none).least_s
        left = seconds - sum(part.at(none).least_s for part in self._other_parts(stage, again=False))
        return (left / each, each) if each > 0 else self._unbounded_capacity

    def _fits_unpenalised(self, blocks: float, stage: int, share: float, found: Sequence[MemoryInstant]) -> bool:
        """Whether ``blocks`` blocks, at most all, fit into memory in their fastest layouts.

        Then no multiplier lowers the capacity below that by time: these layouts exceed neither the time nor the
        bytes."""
        for moment in found:
            none, held = MemoryMultipliers(0.0, 0.0, 0.0, moment.once), max(min(blocks, float(self.blocks)), 0.0)
            taken = [(part.at(none), 1.0) for part in self._other_parts(stage, again=False)]
            taken.append((self.parts(again=False)[1].at(none), held))
            kept = moment.in_flight * share
            bytes_ = sum(
                count * (each.stays + moment.gradients * each.gradients + kept * each.kept) for each, count in taken
            )
            if bytes_ > self.strategies.limit:
                return False
        return True

    def _price(
        self, recomputed: CheckpointingChoice, moment: MemoryInstant, seconds: float, share: float, limit: float
    ) -> tuple[float, float]:
        """A Lagrange multiplier of memory at which few blocks fit, and the least penalised seconds of a block there.

        At the best multiplier for the known layouts, a fast layout that is too large and a small one that is too slow
        cost the same. If another layout costs less at that multiplier, it becomes known, and the best multiplier
        changes."""
        tried = self._tried.setdefault((recomputed, moment, share), {})
        hint = self.hints.get((recomputed, moment.in_flight, moment.once))
        if hint is not None and not tried:
            tried[hint] = self._least_block_s(multipliers_at(hint, moment, share), recomputed)
        for _ in range(MAX_MULTIPLIERS if self._effort is MultiplierEffort.REFINED or not tried else 0):
            price = tightest_multiplier(self._lower_hull(recomputed, moment, share), seconds, limit)
            if any(abs(price - other) <= self._multiplier_tolerance * other for other in tried):
                break
            tried[price] = self._least_block_s(multipliers_at(price, moment, share), recomputed)
        best = min(tried.items(), key=lambda entry: (seconds + entry[0] * limit) / max(entry[1], 1e-30))
        self.hints[recomputed, moment.in_flight, moment.once] = best[0]
        return best

    def _lower_hull(
        self, recomputed: CheckpointingChoice, moment: MemoryInstant, share: float
    ) -> list[tuple[float, float]]:
        """Lower hull of the known blocks' (seconds, bytes): those that are the best at some multiplier, by falling bytes."""
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
            self._edges[key] = counts, lower_hull(found)
        return self._edges[key][1]

    def _least_block_s(self, prices: MemoryMultipliers, recomputed: CheckpointingChoice) -> float:
        """Least penalised seconds of a block."""
        found = []
        if recomputed.kept:
            found.append(self.parts(again=False)[1].at(prices).least_s)
        if recomputed.again:
            less = replace(prices, kept=prices.kept / recomputed.most)
            found.append(self.parts(again=True)[1].at(less).least_s)
        return min(found)
