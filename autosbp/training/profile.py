"""Profile of a few steps with ``torch.profiler``: one Chrome trace per rank."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

NUM_STEPS = 3


class StepProfile:
    """Profiles steps ``first`` to ``first + NUM_STEPS - 1`` into ``folder/rank-R.json``, for Perfetto or Chrome.

    Args:
        folder: folder of the traces; created if missing.
        first: first step to profile; None for no profile.
    """

    def __init__(self, folder: Path, first: int | None) -> None:
        self._folder, self._first = folder, first
        self._profiler: Any = None

    @contextmanager
    def of(self, step: int) -> Iterator[None]:
        """Context manager for one step."""
        if self._first is None or not self._first <= step < self._first + NUM_STEPS:
            yield
            return
        if self._profiler is None:
            self._profiler = torch.profiler.profile()
            self._profiler.start()
        with torch.profiler.record_function(f"step {step}"):
            yield
        if step == self._first + NUM_STEPS - 1:
            self.stop()

    def stop(self) -> None:
        """Write the trace."""
        if self._profiler is None:
            return
        self._profiler.stop()
        self._folder.mkdir(parents=True, exist_ok=True)
        self._profiler.export_chrome_trace(str(self._folder / f"rank-{dist.get_rank()}.json"))
        self._profiler = None
