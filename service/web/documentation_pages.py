"""The documentation as pages: the Markdown files of ``docs``, which are part of the package, with links to each other."""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict

_ALIGNMENT = re.compile(r'style="text-align:(left|right|center)"')
"""Alignment of a table's cells as markdown-it writes it, which the pages' security policy blocks."""
_ROOT = Path(__file__).parent / "documentation"
_ADDRESS = "/docs/"
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_PICTURES = ("pictures/*.svg", "screens/*.png", "*.svg")


@dataclass(frozen=True, slots=True)
class Document:
    """A page: its title, and its HTML."""

    title: str
    html: str


@cache
def documents() -> Mapping[str, Path]:
    """Files of all pages by name, such as ``how-to/ci``."""
    found = sorted(path.relative_to(_ROOT) for pattern in ("*.md", "*/*.md") for path in _ROOT.glob(pattern))
    return {path.with_suffix("").as_posix(): _ROOT / path for path in found}


@cache
def pictures() -> Mapping[str, Path]:
    """Files of all pictures by path."""
    return {path.relative_to(_ROOT).as_posix(): path for pattern in _PICTURES for path in _ROOT.glob(pattern)}


@lru_cache(maxsize=64)
def document(name: str) -> Document:
    """Read and render a page."""
    tokens = _PARSER.parse(_COMMENT.sub("", documents()[name].read_text()))
    title, anchors = name, Counter[str]()
    for at, token in enumerate(tokens):
        if token.type == "heading_open":
            text = tokens[at + 1].content
            anchor = _anchor(text)
            token.attrSet("id", f"{anchor}_{anchors[anchor]}" if anchors[anchor] else anchor)
            anchors[anchor] += 1
            title = text.replace("`", "") if token.tag == "h1" else title
        for child in token.children or ():
            _adapt(child, name)
    html = _PARSER.renderer.render(tokens, _PARSER.options, {})
    return Document(title, _ALIGNMENT.sub(r'align="\1"', html))


def _anchor(heading: str) -> str:
    """Id of a heading, as the documentation's site has it."""
    return re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip())


def _adapt(token: Token, name: str) -> None:
    """Turn relative addresses into those of this service; what is not part of it is no link."""
    attribute = {"link_open": "href", "image": "src"}.get(token.type)
    if attribute is None:
        return
    address = str(token.attrGet(attribute))
    path, hash_sign, anchor = address.partition("#")
    if ":" in path or not path:
        return
    there = posixpath.normpath(posixpath.join(posixpath.dirname(name), path))
    page = there.removesuffix(".md")
    if there.endswith(".md") and page in documents():
        token.attrSet(attribute, f"{_ADDRESS}{page}{hash_sign}{anchor}")
    elif there in pictures():
        token.attrSet(attribute, f"{_ADDRESS}{there}")
    elif there == "openapi.json":
        token.attrSet(attribute, "/openapi.json")
    else:
        token.attrs.pop(attribute)


def _scrolled(tag: str, label: str) -> str:
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{label}">{tag}'


class _Renderer(RendererHTML):
    """Wide tables and blocks of code scroll by themselves."""

    def table_open(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return _scrolled(self.renderToken(tokens, idx, options, env), "Table")

    def table_close(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return f"{self.renderToken(tokens, idx, options, env)}</div>\n"

    def code_block(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return f"{_scrolled(super().code_block(tokens, idx, options, env).rstrip(), 'Code')}</div>\n"

    def fence(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return f"{_scrolled(super().fence(tokens, idx, options, env).rstrip(), 'Code')}</div>\n"


_PARSER = MarkdownIt("commonmark", {"html": False}, renderer_cls=_Renderer).enable("table")
