"""Links used by the communication of pipeline stages, and the bandwidth share of each stream.

A unit of a level (a node, or a device in it) has one link to the others in each direction. Concurrent streams get equal
shares of a link; a stream over several links has the rate of its most shared one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache

from autosbp.program.placed_mesh import link_level, unit

Link = tuple[str, int, int]
"""(``out`` or ``in``, level, unit of that level)."""


class StageLinks:
    """Links of consecutive stages with ``size`` devices each, on a cluster with ``counts`` units per level."""

    def __init__(self, counts: tuple[int, ...], size: int) -> None:
        self.counts, self.size = counts, size
        self.message = cache(self._message)
        self.collectives = cache(self._collectives)

    def _message(self, source: int, target: int) -> frozenset[Link]:
        """Links of the messages from each device of a stage to the device at the same position of another."""
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
        """Links of collectives inside a stage across the units of a level; none for a level below 0."""
        units = {unit(stage * self.size + rank, level, self.counts) for rank in range(self.size if level >= 0 else 0)}
        return frozenset((way, level, each) for way in ("out", "in") for each in units)


def bandwidth_shares(streams: Sequence[frozenset[Link]]) -> list[float]:
    """Relative rate of each concurrent stream, given its links: 1 is the rate that it has alone."""
    used = Counter(link for links in streams for link in links)
    return [1.0 / max((used[link] for link in links), default=1) for links in streams]
