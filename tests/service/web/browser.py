"""Debian's chromium, driven by playwright; where it is not installed, tests are skipped, but in CI they fail."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--force-color-profile=srgb",
)


def executable() -> str:
    """Where the browser is."""
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        reason = "chromium is not installed: scripts/system does it on Debian"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return found


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser without a window, for as long as the context lasts."""
    path = executable()
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path, args=list(_FLAGS))
        try:
            yield launched
        finally:
            launched.close()


def complaints(page: Page) -> list[str]:
    """What the page's console says from now on, errors and warnings: refused styles and scripts among them."""
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    return said
