"""A bound on the steps of a pipeline whose stages need not be alike, without the memory limit.

The p stages of a step of T seconds work and wait p T seconds at the most. All work is in there, m microbatches and what
happens once. On top come, for a schedule with v chunks a stage,

- messages of m microbatches over v p - 1 different cuts, forward and back, where stages wait for them;
- waits. The first microbatch comes to chunk c of stage s behind what all chunks before it take, and chunk c of the stages
  before s. Until then the stage has nothing but p forward passes of each of its chunks before c, as schedules take p
  microbatches through each chunk in turn (Narayanan et al. 2021, section 2.2; Qi et al. 2023, section 2.1). Summed over the
  stages these are what the chunks before take. So stages wait, in sum and for every c, for chunk c of the stages before
  them; on average over c, for a v-th of a forward pass through each stage before them.

No stage has more of a microbatch than T / m seconds, so that the stages before others cannot have little of it, however the
model is cut. Those are the waits that are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from autosbp.costmodel.deliveries import LinkModel
from autosbp.errors import InfeasibleError
from autosbp.graph.ir import LogicalGraph
from autosbp.pipeline import INTERLEAVED, ZERO_BUBBLE
from autosbp.search._layouts import LayoutProblems, Structure
from autosbp.search._pipelines import Shape, shapes

Floats = NDArray[np.float64]
ROUNDING = 1e-9
BISECTIONS = 30


@dataclass(frozen=True)
class _Model:
    """Of one sample: the least seconds of each variable, forward and backward, and forward alone; and of each place where
    there may be a cut, least first, the bytes of a device's message, forward and back. Of a step: what happens once."""

    seconds: Floats
    forward: Floats
    once_s: float
    ahead: Floats
    back: Floats

    @cached_property
    def _densest(self) -> tuple[Floats, Floats]:
        """Seconds, and of these forward ones, of variables that have most forward to their seconds, ever more of them."""
        density = self.forward / np.maximum(self.seconds, 1e-30)
        order = np.argsort(-density)
        zero = np.zeros(1)
        seconds, forward = (np.concatenate([zero, np.cumsum(each[order])]) for each in (self.seconds, self.forward))
        return seconds, forward

    def forward_within(self, seconds: Floats) -> Floats:
        """The most forward seconds of variables that take so many seconds together, of a part of one, too."""
        return np.interp(seconds, *self._densest)


class WaitBounds:
    """Bounds of a structure by the sizes of its microbatches, largest first."""

    def __init__(
        self,
        problems: LayoutProblems,
        structure: Structure,
        sizes: Sequence[int],
        storage: str,
        schedules: tuple[str, ...],
    ) -> None:
        self.problems, self.structure, self.sizes = problems, structure, sizes
        self.storage, self.schedules = storage, schedules

    def raised(self, bounds: Sequence[float], level: float, out_of_time: Callable[[], bool]) -> list[float]:
        """These bounds, of work that is dealt out evenly, with waits and messages, up to a level. Of what happens once they
        have the part of a step that no stage waits (``SpaceSolver._working``)."""
        found, stages = list(bounds), self.structure.stages
        for at, size in enumerate(self.sizes):
            if found[at] < level and not out_of_time() and (model := self._model) is not None:
                count = self.problems.global_batch // size
                work_s = stages * found[at] + (stages - 1) / (count + stages - 1) * model.once_s
                found[at] = max(found[at], self._least(model, size, work_s, level))
        return found

    def _least(self, model: _Model, size: int, work_s: float, level: float) -> float:
        """The least step of microbatches of a size, not above ``level``; ``work_s`` is what all stages work, at the least."""
        if self._step_s(model, size, work_s, level) >= level:
            return level
        low, high = 0.0, level
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            low, high = (middle, high) if self._step_s(model, size, work_s, middle) >= middle else (low, middle)
        return low

    def _step_s(self, model: _Model, size: int, work_s: float, level: float) -> float:
        """What a step takes, at the least, if it takes no more than ``level``."""
        stages = self.structure.stages
        count = self.problems.global_batch // size
        room = level / count * np.arange(1, stages)  # of one microbatch, in so many stages
        ahead = size * (model.forward.sum() - model.forward_within(room / size))
        ahead_s, least = float(np.maximum(ahead, 0.0).sum()), np.inf
        for shape in shapes(stages, count, self.schedules):
            if stages * shape.virtual > len(model.ahead) + 1:
                continue
            least = min(least, work_s + ahead_s / shape.virtual + self._messages_s(model, size, shape))
        return float(least * (1 - ROUNDING)) / stages

    def _messages_s(self, model: _Model, size: int, shape: Shape) -> float:
        """Of all stages. Those of a schedule that sends beside its next pass are not waited for."""
        if shape.schedule not in (INTERLEAVED, ZERO_BUBBLE):
            return 0.0
        stages, cuts = self.structure.stages, self.structure.stages * shape.virtual - 1
        begins, slopes = self._lines
        between = np.arange(cuts) % stages
        # The smallest messages over the slowest links cost least of all ways to deal them out.
        slow, begin = -np.sort(-slopes[between]), -np.sort(-begins[between])
        sent = sum(float(slow @ (size * each[:cuts]) + begin @ (each[:cuts] > 0)) for each in (model.ahead, model.back))
        return self.problems.global_batch // size * sent

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
    def _model(self) -> _Model | None:
        """At the largest microbatch that splits evenly; smaller ones take no less a sample. None where none does."""
        for size in self.sizes:
            with suppress(InfeasibleError):
                return self._model_of(size)
        return None

    def _model_of(self, size: int) -> _Model:
        problems = self.problems
        built = problems.stage_problem(self.structure, size, (self.storage,), again=False)
        assert built.detail is not None
        copies, parts = problems.copies(built.clusters), built.detail.parts[: len(built.clusters)]
        zero = np.zeros(1)
        stored = [part.stored[0] if part.stored else None for part in parts]
        passes = [
            float((part.seconds - (zero if own is None else own.seconds)).min())
            for part, own in zip(parts, stored, strict=True)
        ]
        once = [0.0 if own is None else float((own.seconds - own.often).min()) for own in stored]
        seconds = np.maximum(np.array(passes), 0.0) / problems.global_batch
        forward = np.minimum(np.array([part.forward_s for part in parts]) / size, seconds)
        places = _crossing(problems.bound(size), problems.starts) / (size * self.structure.view.size)
        ahead, back = np.sort(places, axis=1)
        return _Model(
            np.repeat(seconds, copies), np.repeat(forward, copies), float(np.dot(once, copies)), ahead, back
        )


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
