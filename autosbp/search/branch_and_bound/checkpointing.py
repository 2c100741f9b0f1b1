"""Activation checkpointing of a strategy: as few blocks as the memory limit allows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from autosbp.costmodel.memory import memory_bytes
from autosbp.costmodel.memory.stage_memory import memory_runs, stage_memory
from autosbp.costmodel.pipeline_program import PipelineProgram
from autosbp.costmodel.recompute import checkpointing_segments
from autosbp.plan.plan import Strategy
from autosbp.sbp.layout import B
from autosbp.search.stages.layout_problems import LayoutProblems

BLOCKS_PER_RUN = (2, 4)
"""Blocks per checkpointed run, tried if checkpointing every block by itself exceeds the limit.

Fewer inputs are saved, and more activations are recomputed at once.
"""
LONGER_RUNS_CUTOFF = 1.25
"""Memory relative to the limit, above which longer runs are not tried because they cannot save enough."""
MIN_FREE_BLOCK = 0.9
"""Fraction of a block that linear interpolation must leave free for one more block to be tried."""


class StrategyCheckpointing:
    """Adds activation checkpointing to strategies.

    Args:
        problems: of the strategies' graph.
        interval: blocks per run, for all blocks; None chooses by memory.
        limit: bytes per device.
        limits: of each stage if the devices of stages differ; sizes are then compared to ``limit`` by the largest
            excess.
    """

    def __init__(
        self, problems: LayoutProblems, interval: int | None, limit: int, limits: Sequence[int] | None = None
    ) -> None:
        self.problems, self.interval, self.limit, self.limits = problems, interval, limit, limits
        self._last_memory: tuple[Strategy, Mapping[str, int]] | None = None

    def of(self, strategy: Strategy) -> Strategy:
        """The strategy with its checkpointed blocks; with every block if none fits."""
        found = self.apply_if_useful(strategy, lambda _: True)
        assert found is not None
        return found

    def apply_if_useful(self, strategy: Strategy, pays: Callable[[float], bool]) -> Strategy | None:
        """``of``, or None unless ``pays`` accepts the approximate fraction of blocks that need no checkpointing."""
        found = self._with_runs(strategy, self.interval or 1, 0)
        return found if self.interval else self._choose_runs(strategy, found, pays)

    def excess_bytes(self, strategy: Strategy) -> int:
        """Bytes above the limit of the last strategy that ``of`` returned.

        0 if it fits, if smaller gradient buckets may make it fit, and if unknown.
        """
        if self._last_memory is None or self._last_memory[0] is not strategy or self.limits is not None:
            return 0
        parts = self._last_memory[1]
        excess = sum(parts.values()) - self.limit
        reduced = any(B in layout for layout in strategy.parameters.values())
        return 0 if excess <= (parts.get("gradients", 0) if reduced else 0) else excess

    def _choose_runs(self, strategy: Strategy, every: Strategy, pays: Callable[[float], bool]) -> Strategy | None:
        """Choose runs, given the strategy ``every`` with all blocks checkpointed; None if it does not pay."""
        least = self._bytes(every)
        parts = self._last_memory
        if least <= self.limit:
            return self._fewest_blocks(strategy, every, least, pays)
        worth = least <= LONGER_RUNS_CUTOFF * self.limit
        for interval in BLOCKS_PER_RUN:
            if not worth:
                break
            tried = self._with_runs(strategy, interval, 0)
            taken = self._bytes(tried)
            if taken <= self.limit:
                return tried
            # Runs twice as long save half as many inputs and recompute more at once: they free no more than these.
            worth = least - taken >= taken - self.limit
            if taken < least:
                every, least, parts = tried, taken, self._last_memory
        self._last_memory = parts
        return every

    def _fewest_blocks(
        self, strategy: Strategy, found: Strategy, taken: int, pays: Callable[[float], bool]
    ) -> Strategy | None:
        """Checkpoint as few blocks as fit, by the secant method over the number of other blocks per chunk.

        Memory grows nearly linearly with the number of blocks without checkpointing, and time falls. The search stops
        where the line leaves no room for another block. None if ``pays`` rejects the fraction that the line allows.
        """
        chunks = strategy.pipeline.num_chunks if strategy.pipeline else 1
        fits, exceeds = 0, -(-len(self.problems.blocks) // chunks)
        above = self._bytes(strategy)
        if not pays(min((self.limit - taken) / max(above - taken, 1) + 1 / exceeds, 1.0)):
            return None
        while exceeds - fits > 1:
            room = (self.limit - taken) / max(above - taken, 1) * (exceeds - fits)
            if room < MIN_FREE_BLOCK and fits:
                break
            middle = min(max(fits + int(room), fits + 1), exceeds - 1)
            tried = self._with_runs(strategy, 1, middle)
            size = self._bytes(tried)
            if size <= self.limit:
                fits, found, taken = middle, tried, size
            else:
                exceeds, above = middle, size
        return found

    def _with_runs(self, strategy: Strategy, interval: int, kept: int) -> Strategy:
        cuts = strategy.pipeline.cuts if strategy.pipeline else ()
        return replace(strategy, recompute=checkpointing_segments(self.problems.blocks, interval, cuts, kept))

    def _bytes(self, strategy: Strategy) -> int:
        """Bytes of the fullest stage. With equal stages that is the first, or the last, which holds the loss."""
        graph, device = self.problems.bound(strategy.micro_batch), self.problems.compute.device.kind
        if strategy.pipeline is None:
            self._last_memory = strategy, memory_bytes(graph, strategy, device=device)
            return sum(self._last_memory[1].values())
        stages, last = PipelineProgram(graph, strategy), strategy.num_stages - 1

        known = self.problems.known_chunks
        looked_at = range(last + 1) if self.limits is not None else (0, last)
        known.prepare(memory_runs(stages, [chunk for stage in looked_at for chunk in stages.of(stage)], device))
        parts = [stage_memory(stages, stage, device=device, known=known) for stage in looked_at]
        taken = [sum(each.values()) for each in parts]
        self._last_memory = strategy, parts[taken.index(max(taken))]
        if self.limits is not None:
            return self.limit + max(size - limit for size, limit in zip(taken, self.limits, strict=True))
        return max(taken)
