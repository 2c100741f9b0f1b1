from __future__ import annotations

from pathlib import Path

from autosbp.sbp.rules import RULES
from autosbp.testing.rules_document import document

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "op-rules.md"


def test_the_committed_page_is_what_the_generator_writes() -> None:
    assert PAGE.read_text() == document(), "python -m autosbp.testing.rules_document > docs/reference/op-rules.md"


def test_every_rule_is_on_the_page() -> None:
    cells = {name for line in document().splitlines() for name in line.split(" | ")[0].removeprefix("| ").split(", ")}
    assert {op.removeprefix("aten.").removesuffix(".default") for op in RULES} <= cells
