"""Multipliers of what moves beside passes that raise the bound of a space (``problem.weights.Multipliers``).

What a problem costs one strategy is linear in the multipliers: its *plane*. The optimum of a problem, the least of all planes,
is concave, and below each plane that is known, so that what is tried next is where the least of these is highest (Kelley 1960).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autosbp.costmodel.timeline import Timeline
from autosbp.costmodel.timeline_event import GRADIENT_SYNC, PARAMETER_GATHER, Event
from autosbp.search.problem.weights import EARLY, INNER
from autosbp.search.problem.zones import Zones
from autosbp.search.stages.layouts import Exposure

Floats = NDArray[np.float64]
STEPS = 20
"""Of each multiplier, from 0 to 1."""
SAME = 1e-6
"""Relative: heights that differ by less are one."""


@dataclass(frozen=True, slots=True)
class Pass:
    """Of one kind of pass, in seconds of a step: what inner and early ops do (``done``, ``early_done``), of that the messages
    over links of each level (``waited``), and what is beside them over these (``moved``, ``early_moved``)."""

    done: float
    early_done: float
    waited: tuple[float, ...]
    moved: tuple[float, ...]
    early_moved: tuple[float, ...]

    def heights(self, inner: Floats, early: Floats, level: int, early_level: int) -> Floats:
        """By how much more than at multipliers of 0 a problem costs at these."""
        second = self.moved[level] + self.early_moved[level] + self.waited[level] - self.done
        third = np.maximum(early - inner, 0.0) * self.early_moved[early_level]
        found: Floats = inner * second + third - np.maximum(early, inner) * self.early_done
        return found


@dataclass(frozen=True, slots=True)
class Plane:
    """What a problem costs a strategy: ``seconds`` at multipliers of 0, and what its passes make of it at others."""

    seconds: float
    forward: Pass
    backward: Pass

    def heights(self, levels: tuple[int, int, int]) -> Floats:
        """At all multipliers of a grid, of messages over links of these levels: (gather, reduce, early)."""
        gather, reduce, early = levels
        ahead = self.forward.heights(_GRID[:, None], _EARLY[None, :], gather, early)
        back = self.backward.heights(_GRID[:, None], _EARLY[None, :], reduce, early)
        return self.seconds + ahead[:, None, :] + back[None, :, :]


def plane_of(cost_s: float, exposure: Exposure, timeline: Timeline, first: int, zones: Zones, passes: float) -> Plane:
    """Of a strategy whose problem has a cost at some multipliers; levels are counted from ``first`` on."""
    num_levels = len(timeline.strategy.mesh.level_counts) - first
    forward = _pass(timeline.forward_pass(True), first, num_levels, zones, passes)
    backward = _pass(timeline.backward_pass(True), first, num_levels, zones, passes)
    early = np.array(exposure.early)
    risen = forward.heights(np.array(exposure.gather), early, exposure.gather_level, exposure.early_level)
    risen = risen + backward.heights(np.array(exposure.reduce), early, exposure.reduce_level, exposure.early_level)
    return Plane(cost_s - float(risen), forward, backward)


def _pass(events: Iterable[Event], first: int, num_levels: int, zones: Zones, passes: float) -> Pass:
    done, early_done = 0.0, 0.0
    waited, moved, early_moved = np.zeros((3, num_levels))
    for event in events:
        at = event.level - first
        if event.category == "compute":
            zone = zones.of_op(event.name)
            done += event.duration_s * (zone == INNER)
            early_done += event.duration_s * (zone == EARLY)
        elif event.category == "comm" and event.key is None and at < num_levels:
            done += event.duration_s
            waited[at] += event.duration_s
        elif event.purpose in (GRADIENT_SYNC, PARAMETER_GATHER) and at < num_levels:
            early = zones.of_parameter(event.details["cause"]) == EARLY
            (early_moved if early else moved)[at] += event.duration_s
    columns = (tuple((passes * each).tolist()) for each in (waited, moved, early_moved))
    return Pass(passes * done, passes * early_done, *columns)


_GRID = np.linspace(0.0, 1.0, STEPS + 1)
_EARLY = np.array([0.0, 0.5, 1.0])


class Planes:
    """The planes that are known of strategies of one microbatch, on a mesh of so many levels."""

    def __init__(self, num_levels: int) -> None:
        self.known: list[Plane] = []
        every = range(num_levels)
        self._levels = [(gather, reduce, early) for gather in every for reduce in every for early in every]

    def highest(self) -> tuple[Exposure, float]:
        """Where the least of all planes is highest, and how high that is."""
        best, top = Exposure(), -np.inf
        for levels in self._levels:
            least = np.min([each.heights(levels) for each in self.known], axis=0)
            gather, reduce, early = np.unravel_index(int(np.argmax(least)), least.shape)
            height = float(least[gather, reduce, early])
            if height > top * (1 + SAME):
                parts = float(_GRID[gather]), float(_GRID[reduce]), float(_EARLY[early])
                best, top = Exposure(*parts, *levels), height
        return best, top
