"""Multipliers of overlapped communication that raise the bound of a subproblem (``problem.cost_weights``).

The cost of one strategy in a problem is linear in the multipliers: its *plane*. The optimum of a problem is the minimum
over all planes, so it is concave, and below the minimum of the known planes. The next multipliers are those that
maximise this minimum (cutting planes, Kelley 1960).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autosbp.costmodel.step_event import GRADIENT_SYNC, PARAMETER_GATHER, Event
from autosbp.costmodel.step_events import Timeline
from autosbp.plan.plan import Strategy
from autosbp.sbp.mesh import Mesh
from autosbp.search.problem.cost_weights import EARLY, INNER
from autosbp.search.problem.overlap_zones import OverlapZones
from autosbp.search.stages.layout_problems import LayoutProblems, OverlapWeights, SubproblemKey

Floats = NDArray[np.float64]
GRID_INTERVALS = 20
"""Grid intervals of each multiplier, from 0 to 1."""
SAME = 1e-6
"""Relative difference, below which two heights count as equal."""


@dataclass(frozen=True, slots=True)
class PassOverlap:
    """Seconds per step of one kind of pass.

    Args:
        done: compute of inner ops, and communication that the pass waits for.
        early_done: compute of early ops.
        waited: of ``done``, communication by link level.
        moved: communication of inner ops' parameters that overlaps with the pass, by link level.
        early_moved: the same for early ops' parameters.
    """

    done: float
    early_s: float
    exposed_s: tuple[float, ...]
    moved: tuple[float, ...]
    early_overlapped_s: tuple[float, ...]

    def heights(self, inner: Floats, early: Floats, level: int, early_level: int) -> Floats:
        """Increase of a problem's cost over multipliers of 0."""
        second = self.moved[level] + self.early_overlapped_s[level] + self.exposed_s[level] - self.done
        third = np.maximum(early - inner, 0.0) * self.early_overlapped_s[early_level]
        found: Floats = inner * second + third - np.maximum(early, inner) * self.early_s
        return found


@dataclass(frozen=True, slots=True)
class CostPlane:
    """Cost of one strategy in a problem: ``seconds`` at multipliers of 0, and the passes that determine the rest."""

    seconds: float
    forward: PassOverlap
    backward: PassOverlap

    def heights(self, levels: tuple[int, int, int]) -> Floats:
        """Costs on the grid [gather, reduce, early], for communication over links of these levels."""
        gather, reduce, early = levels
        ahead = self.forward.heights(_GRID[:, None], _EARLY[None, :], gather, early)
        back = self.backward.heights(_GRID[:, None], _EARLY[None, :], reduce, early)
        return self.seconds + ahead[:, None, :] + back[None, :, :]


def _pass_overlap(
    events: Iterable[Event], first: int, num_levels: int, zones: OverlapZones, passes: float
) -> PassOverlap:
    done, early_done = 0.0, 0.0
    waited, moved, early_moved = np.zeros((3, num_levels))
    for event in events:
        at = event.level - first
        if event.category == "compute":
            zone = zones.op_zone(event.name)
            done += event.duration_s * (zone == INNER)
            early_done += event.duration_s * (zone == EARLY)
        elif event.category == "comm" and event.key is None and at < num_levels:
            done += event.duration_s
            waited[at] += event.duration_s
        elif event.purpose in (GRADIENT_SYNC, PARAMETER_GATHER) and at < num_levels:
            early = zones.of_parameter(event.details["cause"]) == EARLY
            (early_moved if early else moved)[at] += event.duration_s
    columns = (tuple((passes * each).tolist()) for each in (waited, moved, early_moved))
    return PassOverlap(passes * done, passes * early_done, *columns)


_GRID = np.linspace(0.0, 1.0, GRID_INTERVALS + 1)
_EARLY = np.array([0.0, 0.5, 1.0])


class CostPlanes:
    """Known planes of strategies with one microbatch size on a mesh view."""

    def __init__(self, problems: LayoutProblems, view: Mesh) -> None:
        self.problems, self.known = problems, list[CostPlane]()
        levels = {axis.level for axis in view.axes}
        self._outermost, every = min(levels, default=0), range(max(1, len(levels)))
        self._levels = [(gather, reduce, early) for gather in every for reduce in every for early in every]

    def add(self, space: SubproblemKey, strategy: Strategy, cost_s: float) -> None:
        """Add the plane of a strategy that costs ``cost_s`` at the multipliers of its subproblem."""
        problems, exposure, passes = self.problems, space.overlap_weights, self.problems.weights(space).passes
        timeline = Timeline(problems.bound(space.micro_batch), strategy, problems.boxing(space.view), problems.compute)
        first, zones, early = self._outermost, problems.zones, np.array(exposure.early)
        num_levels = len(strategy.mesh.level_counts) - first
        forward = _pass_overlap(timeline.forward_pass(True), first, num_levels, zones, passes)
        backward = _pass_overlap(timeline.backward_pass(True), first, num_levels, zones, passes)
        risen = forward.heights(np.array(exposure.gather), early, exposure.gather_level, exposure.early_level)
        risen = risen + backward.heights(np.array(exposure.reduce), early, exposure.reduce_level, exposure.early_level)
        self.known.append(CostPlane(cost_s - float(risen), forward, backward))

    def highest(self) -> tuple[OverlapWeights, float]:
        """Multipliers that maximise the minimum of all planes, and that maximum."""
        best, top = OverlapWeights(), -np.inf
        for levels in self._levels:
            least = np.min([each.heights(levels) for each in self.known], axis=0)
            gather, reduce, early = np.unravel_index(int(np.argmax(least)), least.shape)
            height = float(least[gather, reduce, early])
            if height > top * (1 + SAME):
                parts = float(_GRID[gather]), float(_GRID[reduce]), float(_EARLY[early])
                best, top = OverlapWeights(*parts, *levels), height
        return best, top
