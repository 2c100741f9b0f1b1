"""Lower bound on P2P time between the stages of a structure, wherever its chunks are cut."""

from __future__ import annotations

from functools import cached_property
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from autosbp.costmodel.p2p_cost import LinkModel
from autosbp.search.bounds.min_p2p_partition import MessageCut
from autosbp.search.stages.cut_points import cut_places
from autosbp.search.stages.layout_problems import LayoutProblems, PipelineStructure
from autosbp.search.stages.schedule_candidates import ScheduleShape

Floats = NDArray[np.float64]


def waited_messages(shape: ScheduleShape, stages: int, count: int) -> Floats:
    """[stage] number of microbatches for whose messages in one direction each stage itself waits, of ``count``."""
    return np.array([float(shape.schedule.blocking_sends(stage, stages, count)) for stage in range(stages)])


def waited_messages_per_cut(shape: ScheduleShape, stages: int, count: int) -> tuple[Floats, Floats]:
    """How often a step waits for the message over each cut, forward and backward.

    Counts the waits of the cut's own stage, and, for the first microbatch, the waits of every later stage that it has
    to reach, summed over stages (the paths of ``bounds.bubble_bound``)."""
    own = waited_messages(shape, stages, count)
    if shape.schedule.overlaps_sends:
        return own[:-1] + np.arange(stages - 1.0, 0.0, -1.0), own[1:]
    found = np.tile(own, shape.virtual)[:-1]
    return found, found


class P2PBound:
    """Least P2P times of a structure whose microbatches have at most ``size`` samples."""

    def __init__(self, problems: LayoutProblems, structure: PipelineStructure, size: int) -> None:
        self.problems, self.structure, self.size = problems, structure, size

    @property
    def most_chunks(self) -> int:
        """Number of places for cuts, plus one."""
        return len(self._sorted_bytes[0]) + 1

    def total_wait_s(self, shape: ScheduleShape, count: int) -> float:
        """Seconds that all stages together wait for the messages of ``count`` microbatches."""
        stages, batch, found = self.structure.stages, self.problems.global_batch, 0.0
        begins, slopes = self._latency_and_slope
        for often, places in zip(waited_messages_per_cut(shape, stages, count), self._sorted_bytes, strict=True):
            links, sizes = np.arange(len(often)) % stages, places[: len(often)]
            # The sum is least where the most expensive waits get the smallest messages.
            slow, begin = -np.sort(-often * slopes[links]), -np.sort(-often * begins[links])
            found += float(batch / count * (slow @ sizes) + begin @ (sizes > 0))
        return found

    def stage_wait_s(self, shape: ScheduleShape, stage: int, counts: tuple[int, int]) -> float:
        """Seconds a step that one stage waits for the smallest messages.

        If messages overlap with passes, this includes the forward messages on the way to this stage.

        Args:
            counts: fewest and most microbatches of a step.
        """
        fewest, most = counts
        ahead_s, back_s = self._smallest_s[stage]
        often = waited_messages(shape, self.structure.stages, fewest)[stage] / fewest
        ahead = often * (shape.virtual - (stage == self.structure.stages - 1)) * ahead_s
        back = often * (shape.virtual - (stage == 0)) * back_s
        way = self._upstream_forward_s[stage] / most if shape.schedule.overlaps_sends else 0.0
        return float(ahead + back + way)

    def busiest_stage_s(self, shape: ScheduleShape) -> float:
        """Seconds a step of the busiest stage's messages, which go one after another, overlapped with passes or not."""
        if not shape.schedule.overlaps_sends:
            return 0.0
        last = self.structure.stages - 1
        each = enumerate(self._smallest_s)
        return max((stage < last) * ahead_s + (stage > 0) * back_s for stage, (ahead_s, back_s) in each)

    @cached_property
    def _smallest_s(self) -> list[tuple[float, float]]:
        """Per stage, the seconds of its smallest messages for all samples of a step, forward and backward."""
        (ahead, back), slopes, batch = self._sorted_bytes, self._latency_and_slope[1], self.problems.global_batch
        found = batch * ahead[0] * slopes, batch * back[0] * np.roll(slopes, 1)
        return list(zip(*(each.tolist() for each in found), strict=True))

    @cached_property
    def _upstream_forward_s(self) -> list[float]:
        """Per stage, the seconds of the forward messages of all stages before it."""
        return list(accumulate((ahead_s for ahead_s, _ in self._smallest_s[:-1]), initial=0.0))

    @cached_property
    def _latency_and_slope(self) -> tuple[Floats, Floats]:
        """Latency [stage] in seconds and slope [stage] in seconds a byte of messages from each stage to the next (cyclic)."""
        links = LinkModel(self.problems.network, self.problems.compute.copy_bytes_per_s)
        size, stages = self.structure.view.size, self.structure.stages
        ranks = np.arange(size)
        lines = [
            links.even_exchange_lower_bound(size * stage + ranks, size * ((stage + 1) % stages) + ranks)
            for stage in range(stages)
        ]
        return np.array([line[0] for line in lines]), np.array([line[1] for line in lines])

    def cuts(self, shape: ScheduleShape, count: int) -> list[MessageCut]:
        """The messages over each cut of a schedule with ``count`` microbatches, in order."""
        stages, (begins, slopes) = self.structure.stages, self._latency_and_slope
        size = self.problems.global_batch / count
        own, (ahead, back) = waited_messages(shape, stages, count), waited_messages_per_cut(shape, stages, count)
        found = []
        for at in range(len(ahead)):
            link = at % stages
            each = (begins[link] + size * slopes[link] * places for places in self._bytes)
            ahead_s, back_s = (seconds * (places > 0) for seconds, places in zip(each, self._bytes, strict=True))
            found.append(MessageCut(ahead_s, back_s, (ahead[at], back[at]), (own[link], own[(link + 1) % stages])))
        return found

    @cached_property
    def places(self) -> list[int]:
        """Indices of the ops before which the model may be cut."""
        return cut_places(self.problems.bound(self.size), self.problems.starts)

    @cached_property
    def _bytes(self) -> Floats:
        """[direction, place] bytes of one device's message per sample, forward and backward.

        Smaller microbatches need at least as many bytes per sample."""
        crossing = self.problems.crossing_bytes(self.size)
        return crossing[:, self.places] / (self.size * self.structure.view.size)

    @cached_property
    def _sorted_bytes(self) -> Floats:
        """``_bytes``, sorted ascending in each direction."""
        return np.sort(self._bytes, axis=1)
