"""Lower convex hull of layouts by seconds and bytes, and the Lagrange multiplier that bounds a stage's blocks best."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from autosbp.search.bounds.stage_costs import MEMORY_ONLY_MULTIPLIER


def lower_hull(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Corners of the lower left convex hull, from the least first coordinate to the least second one."""
    corners: list[tuple[float, float]] = []
    for x, y in sorted(points):
        if corners and y >= corners[-1][1]:
            continue
        while len(corners) > 1:
            (x1, y1), (x2, y2) = corners[-2:]
            if (y2 - y1) * (x - x1) < (y - y1) * (x2 - x1):
                break
            corners.pop()
        corners.append((x, y))
    return corners


def tightest_multiplier(corners: Sequence[tuple[float, float]], seconds: float, limit: float) -> float:
    """Lagrange multiplier of memory in seconds a byte that allows the fewest blocks.

    Args:
        corners: (seconds, bytes) of a block's layouts, as ``lower_hull`` sorts them.
        seconds: time of the stage.
        limit: memory of the stage in bytes.
    """
    best, least = 0.0, seconds / corners[0][0]
    for (quick, large), (slow, small) in pairwise(corners):
        price = (slow - quick) / (large - small)
        room = (seconds + price * limit) / (quick + price * large)
        if room < least:
            best, least = price, room
    slow, small = corners[-1]
    # If even the smallest blocks exceed the memory before they exceed the time, only bytes count.
    return MEMORY_ONLY_MULTIPLIER * slow / small if small > 0 and limit * slow < seconds * small else best
