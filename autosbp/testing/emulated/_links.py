"""Model of links with limited rate and fixed delay: computes when a frame arrives, or that it is lost."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field

QUEUE_BYTES = 4_000_000


@dataclass(slots=True)
class Links:
    """Full-duplex links of ``num_ports`` nodes to one switch, all with ``rate_bytes_per_s`` and ``delay_s``.

    A frame occupies its sender's link to the switch and its receiver's link after it, both for size / rate. The second
    one starts with the frame's first byte (cut-through), so an idle path takes the time of one link. A frame that would
    queue behind more than ``QUEUE_BYTES`` on either link is lost.
    """

    num_ports: int
    rate_bytes_per_s: float
    delay_s: float
    num_lost: int = 0
    _up_free_s: list[float] = field(init=False)
    _down_free_s: list[float] = field(init=False)
    _waiting: list[tuple[float, int, int, bytes]] = field(init=False, default_factory=list)
    _count: int = 0

    def __post_init__(self) -> None:
        self._up_free_s, self._down_free_s = [0.0] * self.num_ports, [0.0] * self.num_ports

    def send(self, now_s: float, source: int, target: int, frame: bytes, wire_bytes: int) -> None:
        """Send a frame that occupies ``wire_bytes`` of each link."""
        busy_s = wire_bytes / self.rate_bytes_per_s
        up_s = max(now_s, self._up_free_s[source]) + busy_s
        down_s = max(up_s, self._down_free_s[target] + busy_s)
        if max(up_s, down_s) - busy_s - now_s > QUEUE_BYTES / self.rate_bytes_per_s:
            self.num_lost += 1
            return
        self._up_free_s[source], self._down_free_s[target] = up_s, down_s
        self._count += 1
        heapq.heappush(self._waiting, (down_s + self.delay_s, self._count, target, frame))

    def wait_s(self, now_s: float) -> float | None:
        """Seconds until the next frame arrives; None if no frame is in flight."""
        return max(0.0, self._waiting[0][0] - now_s) if self._waiting else None

    def pop_arrived(self, now_s: float) -> Iterator[tuple[int, bytes]]:
        """Yield receiver and frame of all frames that have arrived by now, in order."""
        while self._waiting and self._waiting[0][0] <= now_s:
            _, _, target, frame = heapq.heappop(self._waiting)
            yield target, frame
