"""What README and docs point to is there: pages and their sections, tests, benchmarks, files of measurements."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "examples" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def anchors(page: Path) -> set[str]:
    """Of its headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def missing_links(page: Path) -> list[str]:
    found = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        path, _, section = target.partition("#")
        if path.startswith(("http:", "https:")):
            continue
        other = (page.parent / path).resolve() if path else page
        if not other.exists() or (section and other.suffix == ".md" and section not in anchors(other)):
            found.append(target)
    return found


def missing_commands(page: Path) -> list[str]:
    text = page.read_text()
    found = [
        path
        for command in re.findall(r"pytest ((?:tests[\w/.]*\s?)+)", text)
        for path in command.split()
        if not (ROOT / path).exists()
    ]
    for name in re.findall(r"python -m (benchmarks[\w.]*)", text):
        path = ROOT / name.replace(".", "/")
        if name != "benchmarks.NAME" and not path.with_suffix(".py").exists() and not (path / "__main__.py").exists():
            found.append(name)
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    found += [name for name in re.findall(r"`(?:[A-Z]+=\d+ )*make ([a-z]+)", text) if name not in targets]
    files = re.findall(r"`(?:benchmarks/data/)?(\w+\.json)`", text) if page.name == "benchmarks.md" else []
    return found + [name for name in files if not (ROOT / "benchmarks" / "data" / name).exists()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_points_to_is_there(page: Path) -> None:
    assert not missing_links(page)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_commands_of_a_page_name_what_is_there(page: Path) -> None:
    assert not missing_commands(page)


def test_a_link_and_commands_to_nothing_are_found(tmp_path: Path) -> None:
    page = tmp_path / "benchmarks.md"
    page.write_text(
        "# A (title)\n[one](#a-title) [two](#b) [three](none.md) `pytest tests/none.py tests/test_docs.py` "
        "`python -m benchmarks.none` `make none` `none.json`\n"
    )
    assert missing_links(page) == ["#b", "none.md"]
    assert missing_commands(page) == ["tests/none.py", "benchmarks.none", "none", "none.json"]


def test_every_page_is_reached_from_the_readme() -> None:
    text = (ROOT / "README.md").read_text()
    pages = [page.name for page in (ROOT / "docs").glob("*.md")]
    assert [name for name in pages if f"docs/{name}" not in text] == []
