"""Errors recorded by failed ranks, and the first of them."""

from __future__ import annotations

import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path

from autosbp.utils.json_io import canonical, loads

_LONGEST_SUMMARY, _LONGEST_TRACEBACK = 500, 8000


@dataclass(frozen=True, slots=True)
class RankError:
    """An exception that ended a rank. The time is in nanoseconds: a rank's peers fail within a millisecond of it."""

    time_ns: int
    rank: int
    summary: str
    traceback: str


def write_error(folder: Path, rank: int, error: BaseException) -> None:
    """Write ``error`` to ``folder`` atomically."""
    summary = f"{type(error).__name__}: {error}"[:_LONGEST_SUMMARY]
    lines = "".join(traceback.format_exception(error))[-_LONGEST_TRACEBACK:]
    part = folder / f"rank{rank}.part"
    part.write_bytes(canonical(asdict(RankError(time.time_ns(), rank, summary, lines))))
    part.rename(folder / f"rank{rank}.error")


def first_error(folder: Path) -> RankError | None:
    """The earliest error in ``folder``; None without errors."""
    errors = [RankError(**loads(path.read_bytes(), path.name)) for path in folder.glob("rank*.error")]
    return min(errors, key=lambda error: (error.time_ns, error.rank), default=None)
