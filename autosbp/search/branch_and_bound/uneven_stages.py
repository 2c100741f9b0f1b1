"""Uneven activation checkpointing: each stage checkpoints only the blocks it has to, with cuts that match.

Early stages have more microbatches in flight than late ones. The search checkpoints as many blocks of every chunk as
the fullest stage requires. Here each stage keeps the activations that fit, which makes late stages faster, and the cuts
are balanced again with the time that each stage would take for a range of ops, including its checkpointing. Memory and
room are estimated from the given strategy. The result is costed exactly, and may be no better.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from autosbp.costmodel.memory import state_bytes_per_element
from autosbp.costmodel.memory.stage_memory import memory_runs, stage_memory
from autosbp.costmodel.p2p_cost import LinkModel
from autosbp.costmodel.pipeline_program import PipelineProgram
from autosbp.costmodel.recompute import blocks_of_chunks, per_chunk_segments
from autosbp.costmodel.step_events import Timeline
from autosbp.graph.ir import LogicalGraph
from autosbp.plan.pipeline import Pipeline
from autosbp.plan.plan import Strategy
from autosbp.sbp.boxing import split_factor
from autosbp.search.branch_and_bound.checkpointing import MIN_FREE_BLOCK
from autosbp.search.stages.layout_problems import LayoutProblems
from autosbp.search.stages.partition import (
    CutPoints,
    Floats,
    KeptBlocks,
    StagePartitioner,
    StageProfiles,
    find_cut_points,
    prefix_sums,
)
from autosbp.search.stages.schedule_candidates import seconds_per_byte

ROUNDS = 2
"""Number of times that cuts are balanced, each based on the stages of the previous cuts."""


@dataclass(frozen=True)
class StageCapacity:
    """Blocks of each chunk, and bytes of each stage with all of them checkpointed and with none."""

    strategy: Strategy
    pipeline: Pipeline
    parts: Sequence[Sequence[Sequence[str]]]
    checkpointed_bytes: Sequence[int]
    uncheckpointed_bytes: Sequence[int]


class UnevenStages:
    """Speeds up strategies with checkpointed blocks, stage by stage.

    Args:
        problems: of the strategies' graph.
        links: between stages.
        limit: bytes per device.
        held: stages of ops that the user gave.
        pause: called between steps; an exception that it raises ends the work.
    """

    def __init__(
        self,
        problems: LayoutProblems,
        links: LinkModel,
        limit: int,
        held: Mapping[str, int],
        pause: Callable[[], None] = lambda: None,
    ) -> None:
        self.problems, self.links, self.limit, self.held, self.pause = problems, links, limit, held, pause

    def of(self, strategy: Strategy, step_s: Callable[[Strategy], float]) -> Strategy:
        """A strategy that is faster by ``step_s`` and fits in every stage; ``strategy`` itself if none is found."""
        first = room = self._capacity(strategy)
        for _ in range(ROUNDS):
            cuts = None if room is None else self._cuts(room)
            if room is None or cuts is None or cuts == room.pipeline.cuts:
                break
            room = self._capacity(replace(strategy, pipeline=replace(room.pipeline, cuts=cuts)))
        self.pause()
        known_s = step_s(strategy)
        for each in (room, first):
            found = None if each is None else self._with_fewest_blocks(each)
            if found is not None and step_s(found) < known_s:
                return found
        return strategy

    def _capacity(self, strategy: Strategy) -> StageCapacity | None:
        """Capacity of the stages; None if one does not fit even with all blocks checkpointed."""
        graph, pipeline = self.problems.bound(strategy.micro_batch), strategy.pipeline
        assert pipeline is not None
        parts = blocks_of_chunks(graph, self.problems.blocks, pipeline.cuts)
        least = self._bytes(replace(strategy, recompute=per_chunk_segments(parts, [0] * len(parts))))
        if max(least) > self.limit:
            return None
        return StageCapacity(strategy, pipeline, parts, least, self._bytes(replace(strategy, recompute=())))

    def _with_fewest_blocks(self, room: StageCapacity) -> Strategy:
        """Checkpoint as few blocks of each stage as fit, by the secant method, all stages at once."""
        pipeline, parts = room.pipeline, room.parts

        def kept(counts: Sequence[int]) -> Strategy:
            left = [counts[pipeline.stage_of(at)] for at in range(len(parts))]
            return replace(room.strategy, recompute=per_chunk_segments(parts, left))

        stages = range(pipeline.num_stages)
        exceeds = [max(len(parts[chunk]) for chunk in pipeline.chunks_of(stage)) for stage in stages]
        fits = [
            count if size <= self.limit else 0 for count, size in zip(exceeds, room.uncheckpointed_bytes, strict=True)
        ]
        taken, above = list(room.checkpointed_bytes), list(room.uncheckpointed_bytes)
        while True:
            tried = [
                low + _secant_step(low, high, under, over, self.limit)
                for low, high, under, over in zip(fits, exceeds, taken, above, strict=True)
            ]
            if tried == fits:
                return kept(fits)
            for stage, size in enumerate(self._bytes(kept(tried))):
                if tried[stage] == fits[stage]:
                    continue
                if size <= self.limit:
                    fits[stage], taken[stage] = tried[stage], size
                else:
                    exceeds[stage], above[stage] = tried[stage], size

    def _bytes(self, strategy: Strategy) -> list[int]:
        """Bytes of every stage."""
        self.pause()
        stages, device = (
            PipelineProgram(self.problems.bound(strategy.micro_batch), strategy),
            self.problems.compute.device.kind,
        )
        known = self.problems.known_chunks
        known.prepare(memory_runs(stages, stages.chunks, device))
        return [
            sum(stage_memory(stages, stage, device=device, known=known).values())
            for stage in range(strategy.num_stages)
        ]

    def _cuts(self, room: StageCapacity) -> tuple[str, ...] | None:
        """Cuts with the fastest slowest chunk, if every stage checkpoints as few blocks as fit."""
        problems, strategy, pipeline = self.problems, room.strategy, room.pipeline
        graph, boxing = problems.bound(strategy.micro_batch), problems.boxing(strategy.mesh)
        plain = replace(strategy, pipeline=None, recompute=())
        timeline = Timeline(graph, plain, boxing, problems.compute)
        blocks = {name: 1 / len(block) for block in problems.blocks for name in block}
        again = {name: seconds for name, seconds in timeline.op_seconds(("forward",)).items() if name in blocks}
        seconds = {name: spent + again.get(name, 0.0) for name, spent in timeline.op_seconds().items()}
        places = find_cut_points(graph, plain, seconds, problems.starts, self.held)
        places = replace(places, stage_profiles=self._pace(room, graph, places, again, blocks))
        per_byte = seconds_per_byte(places, plain, self.links)
        return StagePartitioner(places, per_byte, pipeline.num_stages).cut(pipeline.num_chunks)

    def _pace(
        self,
        room: StageCapacity,
        graph: LogicalGraph,
        places: CutPoints,
        again: Mapping[str, float],
        blocks: Mapping[str, float],
    ) -> StageProfiles:
        """Time and room of each stage at any cuts. Memory other than blocks and parameters is assumed constant."""
        strategy, pipeline = room.strategy, room.pipeline
        at, stages = list(places.at), range(pipeline.num_stages)
        state, count, spent = (
            prefix_sums(places.program, amounts) for amounts in (_state_bytes(graph, strategy), blocks, again)
        )
        ends = [0, *(places.at[places.names.index(cut)] for cut in pipeline.cuts), len(places.program)]
        chunks = [pipeline.chunks_of(stage) for stage in stages]

        def of_stage(sums: Floats) -> Floats:
            return np.array([sum(sums[ends[chunk + 1]] - sums[ends[chunk]] for chunk in own) for own in chunks])

        held = np.maximum(of_stage(count), 1.0)
        handed = _in_flight(pipeline, strategy.num_micro) / len(chunks[0]) * float(np.median(places.crossing_bytes))
        beside = np.array(room.checkpointed_bytes) - of_stage(state) - handed * held
        more = (np.array(room.uncheckpointed_bytes) - np.array(room.checkpointed_bytes)) / held
        return StageProfiles(
            (places.before_s,) * len(stages), (places.total_s,) * len(stages), state[at], float(state[-1]),
            tuple(int(self.limit - size) for size in beside),
            KeptBlocks(
                count[at], float(count[-1]), spent[at], float(spent[-1]), tuple(more.tolist()), tuple(handed.tolist())
            ),
        )  # fmt: skip


def _secant_step(low: int, high: int, taken: int, above: int, limit: int) -> int:
    """Step from ``low`` towards ``high`` blocks that reaches the limit by linear interpolation.

    0 if no count lies between them, or if the line leaves no room for one more.
    """
    room = (limit - taken) / max(above - taken, 1) * (high - low)
    if high - low <= 1 or (room < MIN_FREE_BLOCK and low):
        return 0
    return min(max(int(room), 1), high - low - 1)


def _state_bytes(graph: LogicalGraph, strategy: Strategy) -> dict[str, float]:
    """Bytes per device of parameters, gradients and optimizer state, by the first op that reads the parameter."""
    left = {leaf.name: leaf for leaf in graph.trained}
    found: dict[str, float] = {}
    for node in graph.nodes:
        for ref in node.refs():
            leaf = left.pop(ref.name, None)
            if leaf is not None and node.name in graph.parameter_dependent:
                size = prod(leaf.meta.sizes) / split_factor(strategy.parameters[leaf.name], strategy.mesh)
                per_element = state_bytes_per_element(leaf.meta, strategy.optimizer, offload=strategy.offload)
                found[node.name] = found.get(node.name, 0.0) + size * per_element
    return found


def _in_flight(pipeline: Pipeline, num_micro: int) -> Floats:
    """Maximum microbatches in flight per stage, over all its chunks, between forward and backward."""
    counts = (pipeline.num_stages, num_micro, pipeline.num_virtual)
    return np.array([float(pipeline.schedule.in_flight(stage, *counts)) for stage in range(pipeline.num_stages)])
