"""Small pieces of Markdown that the generated pages share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

NOTICE = "Written by `scripts/docs` from {source}; do not edit."


def heading(title: str, source: str, introduction: str) -> str:
    """A page's title, where it comes from, and what it is for."""
    return f"# {title}\n\n{NOTICE.format(source=source)}\n\n{introduction.strip()}\n"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; cells may hold code, but no line ends."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(cell(each) for each in line)} |" for line in lines) + "\n"


def cell(text: str) -> str:
    """Text as one cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def plain(text: str) -> str:
    """Text of the code as text of a page: what looks like HTML is shown as it is."""
    return text.replace("``", "`").replace("<", "&lt;").replace("*", "\\*")
