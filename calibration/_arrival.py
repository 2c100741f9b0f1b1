"""Ranks that come to a collective one after another, as in a step.

A step's ranks come from computation, some milliseconds apart. Gloo's ranks tell a sender that they are ready through the
queue of what they send themselves: behind a message that has begun. An exchange of ranks that come together fills a link in
both directions, one that a rank comes late to takes them in turns, up to 1.8 times as long. So one rank of a group, another
one in each repeat, comes last, and time counts from then on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

LATE_S = 0.008
"""Longer than ranks that share cores need to leave a barrier one after the other."""
_AWAKE_S = 0.0005
"""Longer than it takes to wake up, and too short for a scheduler to take the core away."""


def _wait(seconds: float) -> None:
    """Sleep, so that the others have the cores to themselves, and wake up in time."""
    end = time.perf_counter() + seconds
    time.sleep(max(seconds - _AWAKE_S, 0.0))
    while time.perf_counter() < end:
        pass


@dataclass(frozen=True, slots=True)
class Arrival:
    """Of a rank at ``position`` in its group of ``num_ranks``. ``late_s`` is how long the last one waits before each call,
    and the others for it; it is not counted."""

    position: int = 0
    num_ranks: int = 1
    late_s: float = 0.0
    wait: Callable[[float], object] = _wait

    @staticmethod
    def of(kind: str, backend: str, position: int, num_ranks: int) -> Arrival:
        """NCCL's ranks are ready apart from what they send; ``p2p`` posts its receive first, and leaves some ranks idle."""
        if backend != "gloo" or kind == "p2p":
            return Arrival()
        return Arrival(position, num_ranks, LATE_S)

    def come(self, turn: int) -> None:
        """Return when this rank may join; the last one of this ``turn`` later than the others."""
        if self.late_s and turn % self.num_ranks == self.position:
            self.wait(self.late_s)
