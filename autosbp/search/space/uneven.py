"""Stages that recompute as many blocks as each of them has to, and cuts that go with it.

Early stages have more microbatches in flight than late ones. What search makes recomputes as many blocks of every chunk as
the fullest stage asks for; here each stage keeps what it has room for, and so gets quicker than those before it, and the
cuts are balanced anew: what a stage would take from one place to another, the blocks that it must recompute there included.
Room and bytes are known by about, from the strategy as it is; what comes of it is costed exactly, and may be no better.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from autosbp.costmodel.deliveries import LinkModel
from autosbp.costmodel.memory import state_bytes_per_element
from autosbp.costmodel.memory.stage import memory_runs, stage_memory
from autosbp.costmodel.recompute import chunk_runs, parts_of_chunks
from autosbp.costmodel.stages import Stages
from autosbp.costmodel.timeline import Timeline
from autosbp.graph.ir import LogicalGraph
from autosbp.pipeline import Pipeline
from autosbp.plan import Strategy
from autosbp.sbp.boxing import split_factor
from autosbp.search.space.recompute import ENOUGH
from autosbp.search.stages.cuts import Cutter, Floats, Keeping, Pace, Places, find_places, sums_before
from autosbp.search.stages.layouts import LayoutProblems
from autosbp.search.stages.pipelines import seconds_per_byte

ROUNDS = 2
"""Times that cuts are balanced, each by what stages take with those before."""


@dataclass(frozen=True)
class Room:
    """A pipeline's blocks, by chunk, and what its stages take with all of them recomputed, and with none."""

    strategy: Strategy
    pipeline: Pipeline
    parts: Sequence[Sequence[Sequence[str]]]
    least_bytes: Sequence[int]
    most_bytes: Sequence[int]


class Uneven:
    """Makes strategies with blocks that are recomputed quicker, stage by stage.

    Args:
        problems: whose graph it is.
        links: between stages.
        limit: bytes per device.
        held: stages of ops that are given.
        pause: called between steps; what it raises ends the work.
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
        """One that is quicker by ``step_s``, all of whose stages fit; ``strategy`` itself where none is found."""
        first = room = self._room(strategy)
        for _ in range(ROUNDS):
            cuts = None if room is None else self._cuts(room)
            if room is None or cuts is None or cuts == room.pipeline.cuts:
                break
            room = self._room(replace(strategy, pipeline=replace(room.pipeline, cuts=cuts)))
        self.pause()
        known_s = step_s(strategy)
        for each in (room, first):
            found = None if each is None else self._keeping(each)
            if found is not None and step_s(found) < known_s:
                return found
        return strategy

    def _room(self, strategy: Strategy) -> Room | None:
        """None where a stage has no room even with all recomputed."""
        graph, pipeline = self.problems.bound(strategy.micro_batch), strategy.pipeline
        assert pipeline is not None
        parts = parts_of_chunks(graph, self.problems.blocks, pipeline.cuts)
        least = self._bytes(replace(strategy, recompute=chunk_runs(parts, [0] * len(parts))))
        if max(least) > self.limit:
            return None
        return Room(strategy, pipeline, parts, least, self._bytes(replace(strategy, recompute=())))

    def _keeping(self, room: Room) -> Strategy:
        """As many blocks of each stage kept as fit, by the secant, all stages at once."""
        pipeline, parts = room.pipeline, room.parts

        def kept(counts: Sequence[int]) -> Strategy:
            left = [counts[pipeline.stage_of(at)] for at in range(len(parts))]
            return replace(room.strategy, recompute=chunk_runs(parts, left))

        stages = range(pipeline.num_stages)
        exceeds = [max(len(parts[chunk]) for chunk in pipeline.chunks_of(stage)) for stage in stages]
        fits = [count if size <= self.limit else 0 for count, size in zip(exceeds, room.most_bytes, strict=True)]
        taken, above = list(room.least_bytes), list(room.most_bytes)
        while True:
            tried = [
                low + _between(low, high, under, over, self.limit)
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
        """Of every stage."""
        self.pause()
        stages, device = Stages(self.problems.bound(strategy.micro_batch), strategy), self.problems.compute.device.kind
        known = self.problems.known_chunks
        known.prepare(memory_runs(stages, stages.chunks, device))
        return [
            sum(stage_memory(stages, stage, device=device, known=known).values())
            for stage in range(strategy.num_stages)
        ]

    def _cuts(self, room: Room) -> tuple[str, ...] | None:
        """The cuts of the quickest slowest chunk, were every stage to keep what it has room for there."""
        problems, strategy, pipeline = self.problems, room.strategy, room.pipeline
        graph, boxing = problems.bound(strategy.micro_batch), problems.boxing(strategy.mesh)
        plain = replace(strategy, pipeline=None, recompute=())
        timeline = Timeline(graph, plain, boxing, problems.compute)
        blocks = {name: 1 / len(block) for block in problems.blocks for name in block}
        again = {name: seconds for name, seconds in timeline.op_seconds(("forward",)).items() if name in blocks}
        seconds = {name: spent + again.get(name, 0.0) for name, spent in timeline.op_seconds().items()}
        places = find_places(graph, plain, seconds, problems.starts, self.held)
        places = replace(places, pace=self._pace(room, graph, places, again, blocks))
        per_byte = seconds_per_byte(places, plain, self.links)
        return Cutter(places, per_byte, pipeline.num_stages).cut(pipeline.num_chunks)

    def _pace(
        self,
        room: Room,
        graph: LogicalGraph,
        places: Places,
        again: Mapping[str, float],
        blocks: Mapping[str, float],
    ) -> Pace:
        """What stages have room for: what they take beside their blocks and parameters is taken for the same anywhere."""
        strategy, pipeline = room.strategy, room.pipeline
        at, stages = list(places.at), range(pipeline.num_stages)
        state, count, spent = (
            sums_before(places.program, amounts) for amounts in (_state_bytes(graph, strategy), blocks, again)
        )
        ends = [0, *(places.at[places.names.index(cut)] for cut in pipeline.cuts), len(places.program)]
        chunks = [pipeline.chunks_of(stage) for stage in stages]

        def of_stage(sums: Floats) -> Floats:
            return np.array([sum(sums[ends[chunk + 1]] - sums[ends[chunk]] for chunk in own) for own in chunks])

        held = np.maximum(of_stage(count), 1.0)
        handed = _in_flight(pipeline, strategy.num_micro) / len(chunks[0]) * float(np.median(places.crossing))
        beside = np.array(room.least_bytes) - of_stage(state) - handed * held
        more = (np.array(room.most_bytes) - np.array(room.least_bytes)) / held
        return Pace(
            (places.before_s,) * len(stages), (places.total_s,) * len(stages), state[at], float(state[-1]),
            tuple(int(self.limit - size) for size in beside),
            Keeping(
                count[at], float(count[-1]), spent[at], float(spent[-1]), tuple(more.tolist()), tuple(handed.tolist())
            ),
        )  # fmt: skip


def _between(low: int, high: int, taken: int, above: int, limit: int) -> int:
    """By how much more the first of two counts could be to reach the limit on a straight line; 0 where no count is between
    them, or the line leaves no room for one that was not tried yet."""
    room = (limit - taken) / max(above - taken, 1) * (high - low)
    if high - low <= 1 or (room < ENOUGH and low):
        return 0
    return min(max(int(room), 1), high - low - 1)


def _state_bytes(graph: LogicalGraph, strategy: Strategy) -> dict[str, float]:
    """Of parameters with their gradients and optimizer state, per device, by the op that reads them first."""
    left = {leaf.name: leaf for leaf in graph.trained}
    found: dict[str, float] = {}
    for node in graph.nodes:
        for ref in node.refs():
            leaf = left.pop(ref.name, None)
            if leaf is not None and node.name in graph.computed:
                size = prod(leaf.meta.sizes) / split_factor(strategy.parameters[leaf.name], strategy.mesh)
                per_element = state_bytes_per_element(leaf.meta, strategy.optimizer, offload=strategy.offload)
                found[node.name] = found.get(node.name, 0.0) + size * per_element
    return found


def _in_flight(pipeline: Pipeline, num_micro: int) -> Floats:
    """The most microbatches of all its chunks that each stage has between forward and backward."""
    counts = (pipeline.num_stages, num_micro, pipeline.num_virtual)
    return np.array([float(pipeline.schedule.in_flight(stage, *counts)) for stage in range(pipeline.num_stages)])
