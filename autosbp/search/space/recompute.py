"""How much of a strategy is recomputed: as many blocks as the memory limit asks for, and no more."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from autosbp.costmodel.memory import memory_bytes
from autosbp.costmodel.memory.stage import memory_runs, stage_memory
from autosbp.costmodel.recompute import block_runs
from autosbp.costmodel.stages import Stages
from autosbp.plan import Strategy
from autosbp.sbp.placement import B
from autosbp.search.stages.layouts import LayoutProblems

INTERVALS = (2, 4)
"""Blocks of a run, where every block by itself takes too much: fewer inputs are kept, and more is made anew at once."""
NEAR = 1.25
"""Of the limit; what takes more is not helped by other intervals."""
ENOUGH = 0.9
"""Of a block, by a straight line."""


class Recomputation:
    """Recomputes blocks of strategies.

    Args:
        problems: whose graph it is.
        interval: blocks of a run where that is given, of every block; None is as memory asks for.
        limit: bytes per device.
        limits: of each stage, where these have unlike devices; ``limit`` then stands for what is in reach of its own.
    """

    def __init__(
        self, problems: LayoutProblems, interval: int | None, limit: int, limits: Sequence[int] | None = None
    ) -> None:
        self.problems, self.interval, self.limit, self.limits = problems, interval, limit, limits
        self._parts: tuple[Strategy, Mapping[str, int]] | None = None

    def of(self, strategy: Strategy) -> Strategy:
        """The strategy with what is to be recomputed; where none fits, with every block."""
        found = self.of_use(strategy, lambda _: True)
        assert found is not None
        return found

    def of_use(self, strategy: Strategy, pays: Callable[[float], bool]) -> Strategy | None:
        """As ``of``; None where it does not pay to keep the part of its blocks that it may keep at the most, by about."""
        found = self._recomputing(strategy, self.interval or 1, 0)
        return found if self.interval else self._leaner(strategy, found, pays)

    def excess_bytes(self, strategy: Strategy) -> int:
        """What the strategy that ``of`` gave last has above the limit; 0 where it has room, where smaller messages of gradients
        may make some, and where that is not known."""
        if self._parts is None or self._parts[0] is not strategy or self.limits is not None:
            return 0
        parts = self._parts[1]
        excess = sum(parts.values()) - self.limit
        reduced = any(B in layout for layout in strategy.parameters.values())
        return 0 if excess <= (parts.get("gradients", 0) if reduced else 0) else excess

    def _leaner(self, strategy: Strategy, every: Strategy, pays: Callable[[float], bool]) -> Strategy | None:
        """With as few blocks as fit, given the strategy with every block; None where that does not pay."""
        least = self._bytes(every)
        parts = self._parts
        if least <= self.limit:
            return self._fewest(strategy, every, least, pays)
        worth = least <= NEAR * self.limit
        for interval in INTERVALS:
            if not worth:
                break
            tried = self._recomputing(strategy, interval, 0)
            taken = self._bytes(tried)
            if taken <= self.limit:
                return tried
            # Runs twice as long keep half as many inputs again, and more at once: they save no more than these did.
            worth = least - taken >= taken - self.limit
            if taken < least:
                every, least, parts = tried, taken, self._parts
        self._parts = parts
        return every

    def _fewest(
        self, strategy: Strategy, found: Strategy, taken: int, pays: Callable[[float], bool]
    ) -> Strategy | None:
        """By the secant over the blocks of a chunk that are kept: memory grows with them, nearly evenly, and time falls. Where
        the line leaves no room for another block, none is tried; where it does not pay to keep one more, none at all."""
        chunks = strategy.pipeline.num_chunks if strategy.pipeline else 1
        fits, exceeds = 0, -(-len(self.problems.blocks) // chunks)
        above = self._bytes(strategy)
        if not pays(min((self.limit - taken) / max(above - taken, 1) + 1 / exceeds, 1.0)):
            return None
        while exceeds - fits > 1:
            room = (self.limit - taken) / max(above - taken, 1) * (exceeds - fits)
            if room < ENOUGH and fits:
                break
            middle = min(max(fits + int(room), fits + 1), exceeds - 1)
            tried = self._recomputing(strategy, 1, middle)
            size = self._bytes(tried)
            if size <= self.limit:
                fits, found, taken = middle, tried, size
            else:
                exceeds, above = middle, size
        return found

    def _recomputing(self, strategy: Strategy, interval: int, kept: int) -> Strategy:
        cuts = strategy.pipeline.cuts if strategy.pipeline else ()
        return replace(strategy, recompute=block_runs(self.problems.blocks, interval, cuts, kept))

    def _bytes(self, strategy: Strategy) -> int:
        """What the fullest stage takes: with equal stages that is the first, or the last, which has the loss."""
        graph, device = self.problems.bound(strategy.micro_batch), self.problems.compute.device.kind
        if strategy.pipeline is None:
            self._parts = strategy, memory_bytes(graph, strategy, device=device)
            return sum(self._parts[1].values())
        stages, last = Stages(graph, strategy), strategy.num_stages - 1

        known = self.problems.known_chunks
        looked_at = range(last + 1) if self.limits is not None else (0, last)
        known.prepare(memory_runs(stages, [chunk for stage in looked_at for chunk in stages.of(stage)], device))
        parts = [stage_memory(stages, stage, device=device, known=known) for stage in looked_at]
        taken = [sum(each.values()) for each in parts]
        self._parts = strategy, parts[taken.index(max(taken))]
        if self.limits is not None:
            return self.limit + max(size - limit for size, limit in zip(taken, self.limits, strict=True))
        return max(taken)
