"""The part of a list that is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Window:
    """``limit`` items after ``cursor``, which is a place in the list's order that no insert moves; created at ``after`` or
    later, and earlier than ``before``."""

    limit: int = 50
    cursor: str | None = None
    after: datetime | None = None
    before: datetime | None = None
