"""Mixtures of layouts by their seconds and bytes: which are the best at some price, and which price tells most."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from autosbp.search.bounds.stage_costs import LEAN


def lower_edge(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The corners of the lower left edge of the convex hull, from the least first coordinate to the least second one."""
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


def best_price(corners: Sequence[tuple[float, float]], seconds: float, limit: float) -> float:
    """The price at which mixtures of blocks, each of (seconds, bytes), find least room in so many seconds and bytes."""
    best, least = 0.0, seconds / corners[0][0]
    for (quick, large), (slow, small) in pairwise(corners):
        price = (slow - quick) / (large - small)
        room = (seconds + price * limit) / (quick + price * large)
        if room < least:
            best, least = price, room
    slow, small = corners[-1]
    # Where even the smallest are too many for the memory before they are for the time, nothing but bytes counts.
    return LEAN * slow / small if small > 0 and limit * slow < seconds * small else best
