"""Communication wait: seconds in which a rank does nothing but wait for collectives and messages.

It is what a plan calls exposed communication. On a CPU the host waits; on a GPU the compute stream does, and CUDA events
before and after each wait tell for how long. Waits for messages between pipeline stages hold the bubble, too; on GPUs
torch's schedules wait for them, and they are not counted.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_meters: list[CommunicationWait] = []


class CommunicationWait:
    """Meter of one rank's waits between ``start`` and ``stop``; one at a time.

    Args:
        device: of the rank.
    """

    def __init__(self, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"
        self._host_s = 0.0
        self._events: list[tuple[Any, Any]] = []

    def start(self) -> None:
        """Count the waits from now on."""
        _meters[:] = [self]

    def stop(self) -> None:
        """Count no more waits."""
        _meters.clear()

    def take_s(self) -> float:
        """Seconds since the last call; on a GPU it waits for the device."""
        if self._events:
            torch.cuda.synchronize()
        found: float = self._host_s + sum(begin.elapsed_time(end) for begin, end in self._events) * 1e-3
        self._host_s, self._events = 0.0, []
        return found

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Context around one wait."""
        if self._is_cuda:
            event: Any = torch.cuda.Event
            begin, end = event(enable_timing=True), event(enable_timing=True)
            begin.record()
            yield
            end.record()
            self._events.append((begin, end))
            return
        begin_s = time.perf_counter()
        yield
        self._host_s += time.perf_counter() - begin_s


class _MeteredWork:
    """A handle of communication whose ``wait`` is counted."""

    def __init__(self, work: Any, meter: CommunicationWait) -> None:
        self._work, self._meter = work, meter

    def wait(self) -> None:
        with self._meter.waiting():
            self._work.wait()


def metered(work: Any) -> Any:
    """The handle; while a meter counts, one that tells it how long ``wait`` takes."""
    return _MeteredWork(work, _meters[0]) if _meters else work


@contextmanager
def communicating() -> Iterator[None]:
    """Context around communication that the caller waits for."""
    if not _meters:
        yield
        return
    with _meters[0].waiting():
        yield
