"""Launch overhead of GPUs: a pass takes at least as long as the host needs to launch its ops one after another.

The host launches ahead, so the GPU does not wait as long as its ops take longer than their launches. Small ops leave
the GPU idle. The overhead of a pass, forward or backward, is the host's launch time minus the time of the ops, if
positive.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import ClassVar

from autosbp.costmodel.step_event import Event


@dataclass(frozen=True, slots=True)
class LaunchOverhead:
    """Host seconds to launch one op of a program, views included, forward and backward; measured by calibration on GPUs."""

    HIGH: ClassVar[float] = 0.1

    forward_s: float
    backward_s: float

    def to_dict(self) -> dict[str, float]:
        return asdict(self)


def with_launch_overhead(events: Iterable[Event], host_s: float, phase: str) -> Iterator[Event]:
    """Yield the events of a pass, then an event for the launch time that exceeds the program's own time."""
    done_s = 0.0
    for event in events:
        done_s += event.duration_s if event.key is None else 0.0
        yield event
    if host_s > done_s:
        yield Event("launches", "compute", phase, host_s - done_s)
