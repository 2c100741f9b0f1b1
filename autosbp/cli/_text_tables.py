"""Text tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> Table:
    """A table whose first ``left`` columns are left-aligned names; the others are right-aligned numbers."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    made = Table(title=title or None, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    for at, column in enumerate(columns):
        made.add_column(column, justify="left" if at < left else "right", overflow="fold")
    for row in rows:
        made.add_row(*row)
    return made
