"""README and docs: what they point to exists, generated pages equal what the code says, and the site builds."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
import yaml

from autosbp.cli import app
from autosbp.executor.rank_monitor import VARIABLE as RANK_SILENCE
from autosbp.service.settings import Settings
from tests.docs_pages import GENERATED

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "examples" / "README.md", *sorted(DOCS.rglob("*.md"))]
SOURCES = [ROOT, ROOT / "autosbp", ROOT / "autosbp" / "search"]
"""Folders in which pages name source files: ``costmodel/network.py`` is in ``autosbp``, ``bounds/cut_game.py`` in its
search."""
MADE_UP = {
    *("service/launchers/_queue.py", "tests/service/launchers/test_queue.py", "shop.py", "declared.py"),
    *("deepspeed_pipeline.py", "autosbp_torchtitan.py", "parallelize.py", "accelerate.yaml"),
}
"""Files that tutorials have their reader make, and that exports write."""


def text_of(page: Path) -> str:
    """A page without its blocks of code between fences, whose lines may look like headings."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", text_of(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def links(page: Path) -> list[str]:
    """Relative links of a page, to pages, pictures and files."""
    found = re.findall(r"\]\(([^)\s]+)\)", page.read_text())
    return [target for target in found if not target.startswith(("http:", "https:"))]


def missing_links(page: Path) -> list[str]:
    found = []
    for target in links(page):
        path, _, section = target.partition("#")
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


def missing_sources(page: Path) -> list[str]:
    """Source files, folders and scripts that a page names in code and that do not exist, such as ``costmodel/none.py``."""
    files, folders = r"(?:[\w.*-]+/)*\w+\.(?:py|yaml|yml|conf|c)", r"(?:autosbp|service|scripts)/[\w/-]+"
    names = re.findall(f"`({files}|{folders})`", page.read_text())
    inside = [folder for folder in (ROOT / "autosbp").rglob("*") if folder.is_dir()]
    inside += [ROOT / "service" / "launchers", ROOT / "benchmarks" / "fuzz"]

    def exists(name: str) -> bool:
        places = [page.parent, *SOURCES, *(() if "/" in name else inside)]
        return any((folder / name).exists() for folder in places)

    return [name for name in names if name not in MADE_UP and not exists(name)]


def unknown_options(page: Path) -> list[str]:
    """Commands of autosbp on a page, in a block or in a line, that the program does not have, and options that they lack."""
    program = typer.main.get_command(app)
    shown = re.findall(r"^ {4,}(?:[A-Z_]+=\S+ )*autosbp ([^#\n|;`]+)|`autosbp ([^`]+)`", page.read_text(), re.MULTILINE)
    found = []
    for words in (" ".join(each).split() for each in shown):
        command, ahead = program, words
        while ahead and hasattr(command, "commands") and ahead[0] in command.commands:
            command, ahead = command.commands[ahead[0]], ahead[1:]
        known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)} | {"--help"}
        is_command = words[0] in getattr(program, "commands", {}) or words[0] in ("COMMAND", "--help")
        found += [] if is_command else [words[0]]
        options = [word.partition("=")[0].strip("[],()") for word in ahead if re.match(r"\[?--\w", word)]
        found += [f"{words[0]} {name}" for name in options if name not in known]
    return found


def unknown_settings(page: Path) -> list[str]:
    """Variables of ours on a page that nothing reads."""
    known = {f"AUTOSBP_{name.upper()}" for name in Settings.model_fields} | {"AUTOSBP_API_KEY", RANK_SILENCE}
    names = re.findall(r"AUTOSBP_[A-Z][A-Z_]*[A-Z]", page.read_text())
    workflow = {"AUTOSBP_SERVER", "AUTOSBP_REPOSITORY"}
    return [name for name in names if name not in known | workflow]


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_link_targets_of_pages_exist(page: Path) -> None:
    assert not missing_links(page)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_the_commands_of_a_page_name_what_is_there(page: Path) -> None:
    assert not missing_commands(page)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_the_source_files_that_a_page_names_are_there(page: Path) -> None:
    assert not missing_sources(page)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_the_program_has_the_commands_and_the_service_the_settings_of_a_page(page: Path) -> None:
    assert not unknown_options(page)
    assert not unknown_settings(page)


def test_a_link_commands_and_files_that_do_not_exist_are_found(tmp_path: Path) -> None:
    page = tmp_path / "benchmarks.md"
    page.write_text(
        "# A (title)\n[one](#a-title) [two](#b) [three](none.md) `pytest tests/none.py tests/test_docs.py` "
        "`python -m benchmarks.none` `make none` `none.json` `costmodel/network.py` `costmodel/none.py` `scripts/none`\n"
        "    autosbp plan MODEL --none 1 --stages 2\n`autosbp none` `AUTOSBP_NONE` AUTOSBP_PORT\n"
    )
    assert missing_links(page) == ["#b", "none.md"]
    assert missing_commands(page) == ["tests/none.py", "benchmarks.none", "none", "none.json"]
    assert missing_sources(page) == ["costmodel/none.py", "scripts/none"]
    assert unknown_options(page) == ["plan --none", "none"]
    assert unknown_settings(page) == ["AUTOSBP_NONE"]


def test_every_page_is_reached_from_the_readme() -> None:
    reached, ahead = set(), [ROOT / "README.md"]
    while ahead:
        page = ahead.pop()
        if page not in reached and page.suffix == ".md":
            reached.add(page)
            ahead += [(page.parent / target.partition("#")[0]).resolve() for target in links(page) if target[0] != "#"]
    assert [named(page) for page in PAGES if page not in reached] == []


def test_the_site_has_every_page() -> None:
    def pages(entry: object) -> list[str]:
        if isinstance(entry, dict):
            return [name for part in entry.values() for name in pages(part)]
        return [name for part in entry for name in pages(part)] if isinstance(entry, list) else [str(entry)]

    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    assert sorted(pages(site["nav"])) == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))


@pytest.mark.parametrize("name", GENERATED)
def test_generated_pages_are_what_the_code_says(name: str) -> None:
    assert (DOCS / name).read_text() == GENERATED[name](), "scripts/docs"


def test_search_is_explained_in_few_lines() -> None:
    assert len((DOCS / "concepts" / "search.md").read_text().splitlines()) <= 200


def test_the_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="the extra docs is not installed")
    site = tmp_path / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(site)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    loads = re.compile(r"<(?:script|link|img|iframe)[^>]*(?:src|href)=[\"']?(?:https?:)?//")
    assert [str(page) for page in site.rglob("*.html") if loads.search(page.read_text())] == []
