"""What a GPU waits for the host: a pass takes no less than the host needs to ask for its ops one after another.

The host asks ahead, so that while ops take the GPU longer than the host it waits for nothing. Small ones leave it idle: what
they take less than the host is added up over a pass, forward or backward.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import ClassVar

from autosbp.costmodel.timeline_event import Event


@dataclass(frozen=True, slots=True)
class Launches:
    """Seconds in which the host asks for one op of a program, views included, forward and backward; measured by a calibration
    of GPUs."""

    HIGH: ClassVar[float] = 0.1

    forward_s: float
    backward_s: float

    def to_dict(self) -> dict[str, float]:
        return asdict(self)


def with_waits(events: Iterable[Event], host_s: float, phase: str) -> Iterator[Event]:
    """The events of a pass, and what the host takes longer than what the program does in them."""
    done_s = 0.0
    for event in events:
        done_s += event.duration_s if event.key is None else 0.0
        yield event
    if host_s > done_s:
        yield Event("launches", "compute", phase, host_s - done_s)
