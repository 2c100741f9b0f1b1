"""The window of a list that a request selects."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

CURSOR_PATTERN = r"^[0-9]{16}\.[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
"""Microseconds since 1970, and an id; every such text is a valid position in every list."""


@dataclass(frozen=True, slots=True)
class ListPage:
    """``limit`` items after ``cursor``, created at ``after`` or later and before ``before``.

    A cursor is a position in the list's order, which inserts do not move.
    """

    limit: int = 50
    cursor: str | None = None
    after: datetime | None = None
    before: datetime | None = None
