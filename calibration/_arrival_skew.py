"""Arrival skew: make one rank enter a collective late, as in a training step.

In a step, ranks come from computation and are some milliseconds apart. A Gloo rank announces that it is ready to
receive through its own send queue, after any message already in flight. If ranks start an exchange together, it uses
both directions of a link at once; if one rank is late, the directions alternate, which takes up to 1.8 times as long.
So one rank of a group, a different one in each repeat, enters last, and time counts from then on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

LATE_S = 0.008
"""Seconds. Longer than ranks that share cores need to leave a barrier one after another."""
_SPIN_S = 0.0005
"""Seconds. Longer than waking up takes, and too short for a scheduler to take the core away."""


def _wait(seconds: float) -> None:
    """Sleep for most of the time to leave the cores to others, then spin to resume on time."""
    end = time.perf_counter() + seconds
    time.sleep(max(seconds - _SPIN_S, 0.0))
    while time.perf_counter() < end:
        pass


@dataclass(frozen=True, slots=True)
class ArrivalSkew:
    """Arrival behaviour of a rank at ``position`` in its group of ``num_ranks``.

    ``late_s``: delay in seconds of the last rank before each call, during which the others wait; it is not counted.
    """

    position: int = 0
    num_ranks: int = 1
    late_s: float = 0.0
    wait: Callable[[float], object] = _wait

    @staticmethod
    def of(kind: str, backend: str, position: int, num_ranks: int) -> ArrivalSkew:
        """Skew for Gloo collectives only: NCCL's readiness does not depend on sends, and ``p2p`` posts its receive first.

        ``p2p`` also leaves some ranks idle.
        """
        if backend != "gloo" or kind == "p2p":
            return ArrivalSkew()
        return ArrivalSkew(position, num_ranks, LATE_S)

    def come(self, turn: int) -> None:
        """Return when this rank may join; one rank per ``turn`` is delayed."""
        if self.late_s and turn % self.num_ranks == self.position:
            self.wait(self.late_s)
