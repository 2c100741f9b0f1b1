"""The documentation's pages: each is there with its links, and each page of the service leads to one."""

from __future__ import annotations

import re

import pytest
from starlette.testclient import TestClient

from autosbp.service.web.documentation_pages import documents, pictures
from autosbp.service.web.page_route import HEADERS
from tests.service.web.conftest import HTML, Stored
from tests.service.web.html import Page
from tests.service.web.test_pages import pages

pytestmark = pytest.mark.integration


def test_each_page_has_a_link_to_the_document_that_explains_it(stored: Stored) -> None:
    paths = [*pages(stored), "/docs", "/nothing", "/sign-in"]
    seen = set()
    for path in paths:
        found = Page.of(stored.client.get(path, headers=HTML).text)
        (guide,) = [one for one in found.all("a") if one.attributes.get("aria-label", "").startswith("Help: ")]
        seen.add(guide.attributes["href"])
    assert len(seen) >= 9
    for address in seen:
        assert stored.client.get(address, headers=HTML).status_code == 200, address


def test_every_document_is_a_whole_page_whose_links_lead_somewhere(shared: TestClient) -> None:
    assert {"index", "how-to/ci", "reference/limits"} <= documents().keys() and "pictures/request.svg" in pictures()
    anchors: dict[str, set[str]] = {}
    wanted: list[tuple[str, str]] = []
    for name in documents():
        answer = shared.get(f"/docs/{name}", headers=HTML)
        page = Page.of(answer.text)
        assert (answer.status_code, page.stray, len(page.all("h1"))) == (200, [], 1), name
        assert {each: answer.headers[each] for each in HEADERS} == HEADERS
        anchors[f"/docs/{name}"] = {one.attributes["id"] for one in page.elements if "id" in one.attributes}
        article = answer.text.partition('<article class="document">')[2].partition("</article>")[0]
        assert "|---" not in article and not re.search(r'(src|href)="\.', article), name
        wanted += [(name, address) for address in Page.of(article).links()]
    for name, address in wanted:
        path, _, anchor = address.partition("#")
        if path in anchors:
            assert not anchor or anchor in anchors[path], (name, address)
        else:
            assert path.removeprefix("/docs/") in pictures() or path == "/openapi.json", (name, address)


def test_only_documents_and_their_pictures_are_sent(shared: TestClient) -> None:
    picture = shared.get("/docs/pictures/request.svg")
    assert (picture.status_code, picture.headers["content-type"]) == (200, "image/svg+xml")
    for name in ("none", "how-to", "how-to/ci.md", "openapi.json", "..%2Fpyproject.toml", "%2Fetc%2Fpasswd"):
        answer = shared.get(f"/docs/{name}", headers=HTML)
        assert answer.status_code == 404 and "text/html" in answer.headers["content-type"], name
