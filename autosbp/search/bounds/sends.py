"""The least that messages between the stages of a structure take, wherever its chunks are cut."""

from __future__ import annotations

from functools import cached_property
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from autosbp.costmodel.deliveries import LinkModel
from autosbp.search.bounds.dealing import Cut
from autosbp.search.stages.crossings import cut_places
from autosbp.search.stages.layouts import LayoutProblems, Structure
from autosbp.search.stages.pipelines import Shape

Floats = NDArray[np.float64]


def own_waits(shape: Shape, stages: int, count: int) -> Floats:
    """For how many of so many microbatches' messages in one direction each stage itself waits."""
    return np.array([float(shape.schedule.sends_waited(stage, stages, count)) for stage in range(stages)])


def crossings(shape: Shape, stages: int, count: int) -> tuple[Floats, Floats]:
    """How often the message over each cut is waited for in a step, forward and back: by its own stage, and on the way of the
    first microbatch to each of those behind, in sum over the stages (the paths of ``bounds.bubble``)."""
    own = own_waits(shape, stages, count)
    if shape.schedule.overlaps_sends:
        return own[:-1] + np.arange(stages - 1.0, 0.0, -1.0), own[1:]
    found = np.tile(own, shape.virtual)[:-1]
    return found, found


class Sends:
    """Messages of a structure whose microbatches have no more than ``size`` samples."""

    def __init__(self, problems: LayoutProblems, structure: Structure, size: int) -> None:
        self.problems, self.structure, self.size = problems, structure, size

    @property
    def most_chunks(self) -> int:
        """One more than there are places for cuts."""
        return len(self._places[0]) + 1

    def least_s(self, shape: Shape, count: int) -> float:
        """What all stages wait for messages of so many microbatches."""
        stages, batch, found = self.structure.stages, self.problems.global_batch, 0.0
        begins, slopes = self._lines
        for often, places in zip(crossings(shape, stages, count), self._places, strict=True):
            links, sizes = np.arange(len(often)) % stages, places[: len(often)]
            # The smallest messages where waiting is dearest cost least of all ways to deal them out.
            slow, begin = -np.sort(-often * slopes[links]), -np.sort(-often * begins[links])
            found += float(batch / count * (slow @ sizes) + begin @ (sizes > 0))
        return found

    def of_stage_s(self, shape: Shape, stage: int, counts: tuple[int, int]) -> float:
        """What one stage waits in a step of so many microbatches at the least, and at the most, by the bytes of the smallest
        messages; for the first one on its way here, too, where messages go beside passes."""
        fewest, most = counts
        ahead_s, back_s = self._smallest_s[stage]
        often = own_waits(shape, self.structure.stages, fewest)[stage] / fewest
        ahead = often * (shape.virtual - (stage == self.structure.stages - 1)) * ahead_s
        back = often * (shape.virtual - (stage == 0)) * back_s
        way = self._way_s[stage] / most if shape.schedule.overlaps_sends else 0.0
        return float(ahead + back + way)

    def busiest_s(self, shape: Shape) -> float:
        """What the messages of one stage take that go one after another, beside passes or not."""
        if not shape.schedule.overlaps_sends:
            return 0.0
        last = self.structure.stages - 1
        each = enumerate(self._smallest_s)
        return max((stage < last) * ahead_s + (stage > 0) * back_s for stage, (ahead_s, back_s) in each)

    @cached_property
    def _smallest_s(self) -> list[tuple[float, float]]:
        """The smallest messages of each stage, of all of a step's samples, forward and back."""
        (ahead, back), slopes, batch = self._places, self._lines[1], self.problems.global_batch
        found = batch * ahead[0] * slopes, batch * back[0] * np.roll(slopes, 1)
        return list(zip(*(each.tolist() for each in found), strict=True))

    @cached_property
    def _way_s(self) -> list[float]:
        """The forward ones of all stages before each."""
        return list(accumulate((ahead_s for ahead_s, _ in self._smallest_s[:-1]), initial=0.0))

    @cached_property
    def _lines(self) -> tuple[Floats, Floats]:
        """Of messages from each stage to the next, the last one's to the first: seconds, and seconds a byte."""
        links = LinkModel(self.problems.network, self.problems.compute.copy_bytes_per_s)
        size, stages = self.structure.view.size, self.structure.stages
        ranks = np.arange(size)
        lines = [
            links.least_line(size * stage + ranks, size * ((stage + 1) % stages) + ranks) for stage in range(stages)
        ]
        return np.array([line[0] for line in lines]), np.array([line[1] for line in lines])

    def cuts(self, shape: Shape, count: int) -> list[Cut]:
        """The messages of a schedule of so many microbatches, in order."""
        stages, (begins, slopes) = self.structure.stages, self._lines
        size = self.problems.global_batch / count
        own, (ahead, back) = own_waits(shape, stages, count), crossings(shape, stages, count)
        found = []
        for at in range(len(ahead)):
            link = at % stages
            each = (begins[link] + size * slopes[link] * places for places in self._bytes)
            ahead_s, back_s = (seconds * (places > 0) for seconds, places in zip(each, self._bytes, strict=True))
            found.append(Cut(ahead_s, back_s, (ahead[at], back[at]), (own[link], own[(link + 1) % stages])))
        return found

    @cached_property
    def places(self) -> list[int]:
        """The ops, by number, before which there may be a cut."""
        return cut_places(self.problems.bound(self.size), self.problems.starts)

    @cached_property
    def _bytes(self) -> Floats:
        """Of a device's message of one sample, forward and back, at each place. Those of smaller microbatches are no less."""
        crossing = self.problems.crossing(self.size)
        return crossing[:, self.places] / (self.size * self.structure.view.size)

    @cached_property
    def _places(self) -> Floats:
        """Those bytes, least first."""
        return np.sort(self._bytes, axis=1)
