"""``python -m tests.docs_pages``: write the files of ``docs`` that come from the code."""

from __future__ import annotations

from pathlib import Path

from tests.docs_pages import GENERATED

DOCS = Path(__file__).parents[2] / "docs"
for name, content in GENERATED.items():
    (DOCS / name).write_text(content())
