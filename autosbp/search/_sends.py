"""The least that messages between the stages of a structure take, wherever its chunks are cut."""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from autosbp.costmodel.deliveries import LinkModel
from autosbp.graph.ir import LogicalGraph
from autosbp.pipeline import INTERLEAVED, ZERO_BUBBLE
from autosbp.search._layouts import LayoutProblems, Structure
from autosbp.search._pipelines import Shape

Floats = NDArray[np.float64]
WAITING = (INTERLEAVED, ZERO_BUBBLE)
"""Schedules whose stages wait for their messages. The others send beside their next pass."""


class Sends:
    """Messages of a structure whose microbatches have no more than ``size`` samples."""

    def __init__(self, problems: LayoutProblems, structure: Structure, size: int) -> None:
        self.problems, self.structure, self.size = problems, structure, size

    @property
    def most_chunks(self) -> int:
        """One more than there are places for cuts."""
        return len(self._places[0]) + 1

    def least_s(self, shape: Shape, count: int) -> float:
        """What all stages wait for so many microbatches."""
        if shape.schedule not in WAITING:
            return 0.0
        stages, cuts = self.structure.stages, self.structure.stages * shape.virtual - 1
        begins, slopes = self._lines
        between = np.arange(cuts) % stages
        # The smallest messages over the slowest links cost least of all ways to deal them out.
        slow, begin = -np.sort(-slopes[between]), -np.sort(-begins[between])
        batch = self.problems.global_batch
        return sum(
            float(batch * (slow @ each[:cuts]) + count * (begin @ (each[:cuts] > 0))) for each in self._places
        )

    def of_stage_s(self, shape: Shape, stage: int) -> float:
        """What one stage waits in a step, by the bytes of the smallest messages."""
        if shape.schedule not in WAITING:
            return 0.0
        last, (ahead, back), slopes = self.structure.stages - 1, self._places, self._lines[1]
        batch = self.problems.global_batch
        ahead_s = batch * ahead[0] * slopes[stage] * (shape.virtual - (stage == last))
        back_s = batch * back[0] * slopes[stage - 1] * (shape.virtual - (stage == 0))
        return float(ahead_s + back_s)

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

    @cached_property
    def _places(self) -> Floats:
        """Bytes of a device's message of one sample, forward and back, at each place where there may be a cut, least first.
        Those of smaller microbatches are no less."""
        bound, size = self.problems.bound(self.size), self.structure.view.size
        return np.sort(_crossing(bound, self.problems.starts) / (self.size * size), axis=1)


def _crossing(graph: LogicalGraph, starts: Collection[str] | None) -> Floats:
    """Bytes of what goes on over each place where a chunk may begin, before any op or one of ``starts``: whole, and of what
    has a gradient."""
    nodes = [node for node in graph.nodes if node.name in graph.computed]
    at = {node.name: place for place, node in enumerate(nodes)}
    last = {ref: place for place, node in enumerate(nodes) for ref in node.refs() if ref.name in at}
    change = np.zeros((2, len(nodes) + 1))
    for ref, end in last.items():
        size = graph.meta(ref).num_bytes * np.array([1.0, graph.has_gradient(ref)])
        change[:, at[ref.name] + 1] += size
        change[:, end + 1] -= size
    places = [place for place in range(1, len(nodes)) if starts is None or nodes[place].name in starts]
    crossing: Floats = np.cumsum(change, axis=1)[:, places]
    return crossing
