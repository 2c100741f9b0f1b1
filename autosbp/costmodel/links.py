"""Which links the communication of a pipeline's stages goes over, and what each part of it has of them.

A unit of a level (a node, a device of it) has one link to the others in each direction. What goes over it at the same time
has equal shares of it, so what goes over several is as quick as on the one that most share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache

from autosbp.sbp.placed_mesh import link_level, unit

Link = tuple[str, int, int]
"""``out`` or ``in``, a level, and a unit of it."""


class Links:
    """Of stages that have ``size`` devices each, one behind the other, on a cluster with levels of so many units."""

    def __init__(self, counts: tuple[int, ...], size: int) -> None:
        self.counts, self.size = counts, size
        self.message = cache(self._message)
        self.collectives = cache(self._collectives)

    def _message(self, source: int, target: int) -> frozenset[Link]:
        """Of messages from each device of a stage to the one of another in the same place."""
        found = set[Link]()
        for rank in range(self.size):
            ends = source * self.size + rank, target * self.size + rank
            if ends[0] == ends[1]:
                continue
            level = link_level(*ends, self.counts)
            found.update(
                (way, level, unit(end, level, self.counts)) for way, end in zip(("out", "in"), ends, strict=True)
            )
        return frozenset(found)

    def _collectives(self, stage: int, level: int) -> frozenset[Link]:
        """Of collectives inside a stage, across the units of a level; below 0 it is none."""
        units = {unit(stage * self.size + rank, level, self.counts) for rank in range(self.size if level >= 0 else 0)}
        return frozenset((way, level, each) for way in ("out", "in") for each in units)


def shares(streams: Sequence[frozenset[Link]]) -> list[float]:
    """Of what is under way at once, each over its links, the part of the rate that it has alone."""
    used = Counter(link for links in streams for link in links)
    return [1.0 / max((used[link] for link in links), default=1) for links in streams]
