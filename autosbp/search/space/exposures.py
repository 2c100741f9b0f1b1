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
from autosbp.search.problem.weights import EARLY, INNER, LATE
from autosbp.search.problem.zones import Zones
from autosbp.search.stages.layouts import Exposure

Floats = NDArray[np.float64]
STEPS = 50
"""Of each multiplier, from 0 to 1."""
SAME = 1e-4
"""Relative: planes that differ by less are one."""


@dataclass(frozen=True, slots=True)
class Plane:
    """Seconds that a problem costs a strategy: at multipliers of 0, and by how much more for each of them at 1, which is what
    moves beside passes less what the program does in them."""

    seconds: float
    gather: float
    reduce: float
    early: float

    @property
    def step_s(self) -> float:
        """The most of it, about what the step takes."""
        return self.seconds + max(self.gather, 0.0) + max(self.reduce, 0.0) + max(self.early, 0.0)


def plane_of(
    cost_s: float,
    exposure: Exposure,
    timeline: Timeline,
    level: int,
    slowdown: float,
    zones: Zones,
    passes: float,
) -> Plane:
    """Of a strategy whose problem has a cost at some multipliers, of messages over links of a ``level``."""
    gather, reduce, early = 0.0, 0.0, 0.0
    for events, forward in ((timeline.forward_pass(True), True), (timeline.backward_pass(True), False)):
        slopes = _slopes(events, level, slowdown, zones)
        early += passes * slopes[EARLY]
        gather, reduce = gather + passes * slopes[INNER] * forward, reduce + passes * slopes[INNER] * (not forward)
    seconds = cost_s - gather * exposure.gather - reduce * exposure.reduce - early * exposure.early
    return Plane(seconds, gather, reduce, early)


def _slopes(events: Iterable[Event], level: int, slowdown: float, zones: Zones) -> dict[str, float]:
    """What messages move in a pass less what the program does, by zone."""
    found = {EARLY: 0.0, INNER: 0.0, LATE: 0.0}
    for event in events:
        if event.category == "compute":
            found[zones.of_op(event.name)] -= event.duration_s
        elif event.category == "comm" and event.key is None:
            if event.level != level:
                found[INNER] -= (1 - slowdown) * event.duration_s
        elif event.purpose in (GRADIENT_SYNC, PARAMETER_GATHER) and event.level == level:
            found[zones.of_parameter(event.details["cause"])] += (1 - slowdown) * event.duration_s
    return found


_GRID = np.linspace(0.0, 1.0, STEPS + 1)
_EARLY = np.array([0.0, 0.5, 1.0])


class Planes:
    """The planes that are known of strategies of one microbatch."""

    def __init__(self) -> None:
        self.known: list[Plane] = []

    def add(self, plane: Plane) -> None:
        """Unless one like it is known."""
        scale = SAME * plane.step_s
        if not any(
            abs(plane.seconds - each.seconds) + abs(plane.gather - each.gather) + abs(plane.reduce - each.reduce)
            < scale
            for each in self.known
        ):
            self.known.append(plane)

    def highest(self) -> tuple[Exposure, float]:
        """Where the least of all planes is highest, and how high that is."""
        least = np.min([_heights(each) for each in self.known], axis=0)
        gather, reduce, early = np.unravel_index(int(np.argmax(least)), least.shape)
        return Exposure(float(_GRID[gather]), float(_GRID[reduce]), float(_EARLY[early])), float(least.max())


def _heights(plane: Plane) -> Floats:
    inner = plane.gather * _GRID[:, None] + plane.reduce * _GRID[None, :]
    found: Floats = plane.seconds + inner[:, :, None] + plane.early * _EARLY
    return found
