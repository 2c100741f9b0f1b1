"""/docs in a real browser: the interface, drawn under the policy of the pages."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.service.server import Server
from tests.service.web.browser import browser, complaints

pytestmark = pytest.mark.integration


def test_the_interface_is_shown_and_tried_and_nothing_is_refused_or_fetched_elsewhere(tmp_path: Path) -> None:
    with Server(tmp_path) as server, browser() as chromium:
        page = chromium.new_page()
        said, asked = complaints(page), list[str]()
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"{server.url}/docs")
        row = page.locator("#operations-jobs-list_jobs")
        expect(row).to_be_visible()
        row.locator("button").first.click()
        row.get_by_role("button", name="Try it out").click()
        row.get_by_role("button", name="Execute").click()
        expect(row.locator(".responses-inner")).to_contain_text('"items": []')
        assert all(url.startswith((server.url, "data:")) for url in asked), asked
        assert said == []
