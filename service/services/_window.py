"""The part of a list that is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

CURSOR_PATTERN = r"^[0-9]{16}\.[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
"""Microseconds since 1970, and an id: every such text is a place in every list."""


@dataclass(frozen=True, slots=True)
class Window:
    """``limit`` items after ``cursor``, which is a place in the list's order that no insert moves; created at ``after`` or
    later, and earlier than ``before``."""

    limit: int = 50
    cursor: str | None = None
    after: datetime | None = None
    before: datetime | None = None
