"""Reading pages as a browser would."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

_VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}


@dataclass
class Element:
    """A start tag with its attributes, and the text directly in it."""

    tag: str
    attributes: dict[str, str]
    text: str = ""


@dataclass
class Page(HTMLParser):
    """Every element in order; ``unclosed`` and ``stray`` are tags without their other half."""

    elements: list[Element] = field(default_factory=list)
    stray: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self._open: list[Element] = []

    @staticmethod
    def of(text: str) -> Page:
        """A page that was read whole."""
        page = Page()
        page.feed(text)
        page.close()
        page.stray += [f"<{one.tag}>" for one in page._open]
        return page

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.elements.append(element)
        if tag not in _VOID:
            self._open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(Element(tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        if self._open and self._open[-1].tag == tag:
            self._open.pop()
        else:
            self.stray.append(f"</{tag}>")

    def handle_data(self, data: str) -> None:
        if self._open:
            self._open[-1].text += data

    def all(self, tag: str) -> list[Element]:
        """Elements of a kind."""
        return [element for element in self.elements if element.tag == tag]

    def links(self) -> list[str]:
        """Addresses of this service that the page leads to, or fetches from."""
        names = ("href", "src", "hx-get")
        found = [one.attributes[name] for one in self.elements for name in names if name in one.attributes]
        return [address for address in found if address.startswith("/")]
