"""The pages in a real browser: with the keyboard alone from the first page to a plan, and every page as it is seen."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from autosbp.client import Client
from tests.service import documents
from tests.service.server import Server
from tests.service.web.browser import browser, complaints

pytestmark = pytest.mark.integration

NARROW, WIDE = 400, 1280
PATIENCE_MS = 60_000
RULES = {"runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]}}


@dataclass
class Seen:
    """A browser at a running service, where a plan was asked for through the form."""

    browser: Browser
    url: str
    strategy: str
    others: tuple[str, ...]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    with browser() as opened, Server(tmp_path_factory.mktemp("seen")) as server:
        page = opened.new_page()
        said = complaints(page)
        search = plan_by_keyboard(page, server.url)
        strategy = page.get_by_role("link", name="Open the plan").get_attribute("href") or ""
        assert said == []
        page.close()
        with Client(server.url) as client:
            calibration = client.post_calibration(documents.calibration("local:2"))
            model = client.get_strategy(strategy.rsplit("/", 1)[1])["provenance"]["graph_hash"]
            (cluster,) = [each["cluster_id"] for each in client.calibrations() if each["id"] == calibration]
        others = (search, f"/models/mod-{model}", f"/calibrations/{calibration}", f"/clusters/{cluster}")
        yield Seen(opened, server.url, strategy, others)


def press_until(page: Page, key: str, words: str) -> None:
    """Press a key until what is focused says these words."""
    for _ in range(60):
        page.keyboard.press(key)
        if words in (page.evaluate("document.activeElement.name || document.activeElement.innerText || ''") or ""):
            return
    raise AssertionError(f"{key} does not lead to {words!r}")


def plan_by_keyboard(page: Page, url: str) -> str:
    """From the first page to a plan without a mouse; the path of the search's page."""
    page.goto(url)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    press_until(page, "Tab", "Plan a model")
    page.keyboard.press("Enter")
    page.wait_for_url("**/plan")
    press_until(page, "Tab", "zoo")
    page.keyboard.type("mlp-small")
    press_until(page, "Tab", "preset")
    page.keyboard.type("local")
    press_until(page, "Tab", "nodes")
    page.keyboard.type("2")
    press_until(page, "Tab", "global_batch")
    page.keyboard.type("8")
    page.keyboard.press("Enter")
    page.wait_for_url("**/searches/*")
    expect(page.get_by_role("heading", name="The plan is ready")).to_be_visible(timeout=PATIENCE_MS)
    return page.url.removeprefix(url)


def opened(page: Page, seen: Seen, path: str) -> None:
    """Go to a page and wait until all of it is there."""
    page.goto(seen.url + path)
    expect(page.locator("[aria-busy=true]")).to_have_count(0, timeout=PATIENCE_MS)
    page.wait_for_function("[...document.querySelectorAll('[data-chart]')].every((one) => one.dataset.drawn)")


def paths(seen: Seen) -> tuple[str, ...]:
    return (
        "/",
        "/plan",
        "/strategies",
        "/models",
        "/clusters",
        "/trials",
        "/jobs",
        "/nothing",
        seen.strategy,
        *seen.others,
    )


@pytest.mark.parametrize(("theme", "width"), [("light", NARROW), ("dark", WIDE)])
@pytest.mark.some(2)
def test_no_page_complains_overflows_or_breaks_a_rule_of_accessibility(seen: Seen, theme: Any, width: int) -> None:
    context = seen.browser.new_context(color_scheme=theme, viewport={"width": width, "height": 800})
    page = context.new_page()
    said = complaints(page)
    lists = ("/models", "/clusters", "/trials", "/jobs")  # made of what /strategies is made of
    for path in paths(seen) if width == NARROW else ("/plan", seen.strategy):
        opened(page, seen, path)
        assert page.evaluate("document.documentElement.dataset.theme") == theme
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
        if path in lists:
            continue
        found = Axe().run(page, options=RULES)
        assert found.violations_count == 0, (path, found.generate_report())
    assert [text for text in said if "404" not in text] == []
    context.close()


def test_a_trial_shows_how_it_goes_and_then_what_it_measured(seen: Seen) -> None:
    with Client(seen.url) as client:
        job = client.trial(seen.strategy.rsplit("/", 1)[1], steps=3, warmup=1)
        (trial,) = [each["id"] for each in client.trials() if each["job"]["id"] == job.id]
    context = seen.browser.new_context(viewport={"width": NARROW, "height": 800})
    page = context.new_page()
    said = complaints(page)
    page.goto(f"{seen.url}/trials/{trial}")
    expect(page.get_by_role("status").first).to_contain_text(re.compile("queued|running"))
    expect(page.get_by_label("Log of the ranks")).to_be_visible(timeout=2 * PATIENCE_MS)
    expect(page.get_by_role("heading", name="Predicted and measured").first).to_be_visible(timeout=2 * PATIENCE_MS)
    expect(page.get_by_role("status").first).to_contain_text("succeeded")
    for path in (f"/trials/{trial}", f"/jobs/{job.id}"):
        opened(page, seen, path)
        assert page.evaluate("document.documentElement.scrollWidth") <= NARROW, path
        found = Axe().run(page, options=RULES)
        assert found.violations_count == 0, (path, found.generate_report())
    opened(page, seen, f"/trials/{trial}")
    assert all(inside for texts in page.locator("[data-chart]").evaluate_all(TEXTS) for _, inside in texts)
    assert "as predicted" in page.inner_text("main")
    assert len(page.screenshot(full_page=True)) > 20_000
    assert said == []
    context.close()


def test_charts_are_drawn_and_the_timeline_is_not_empty(seen: Seen) -> None:
    page = seen.browser.new_page()
    opened(page, seen, seen.strategy)
    painted = """(canvas) => {
      const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      return new Set(new Uint32Array(data.buffer)).size;
    }"""
    kinds = set()
    for chart in page.locator("[data-chart]").all():
        kinds.add(chart.get_attribute("data-chart"))
        chart.scroll_into_view_if_needed()
        assert chart.locator("canvas").first.evaluate(painted) > 20
    assert {"gantt", "stacked"} <= kinds
    page.close()


TEXTS = """(places) => places.map((place) => {
  const chart = echarts.getInstanceByDom(place);
  return chart.getZr().storage.getDisplayList().filter((one) => one.type === "tspan").map((one) => {
    const rect = one.getBoundingRect().clone();
    if (one.transform) rect.applyTransform(one.transform);
    const [right, bottom] = [rect.x + rect.width, rect.y + rect.height];
    const inside = rect.x >= -1 && rect.y >= -1 && right <= chart.getWidth() + 1 && bottom <= chart.getHeight() + 1;
    return [one.style.text, inside];
  });
})"""
TICKS = """async () => {
  const address = document.querySelector("script[src*='js/charts']").src.replace("charts.js", "chart-options.js");
  const { ticks } = await import(address);
  return [587.7452859854549, 0, 1000, 0.1 + 0.2, -12.5].map(ticks);
}"""


@pytest.mark.parametrize("width", [NARROW, WIDE])
def test_texts_of_charts_are_rounded_whole_and_inside(seen: Seen, width: int) -> None:
    page = seen.browser.new_page(viewport={"width": width, "height": 900})
    count = 0
    for path in (seen.strategy, *seen.others):
        opened(page, seen, path)
        for texts in page.locator("[data-chart]:visible").evaluate_all(TEXTS):
            for text, inside in texts:
                count += 1
                assert inside and "…" not in text, (path, text)
                assert all(len(number) <= 8 for number in re.findall(r"\d+\.\d+", text)), (path, text)
    assert count > 40
    if width == NARROW:
        opened(page, seen, seen.strategy)
        assert page.evaluate(TICKS) == ["587.745", "0", "1000", "0.3", "-12.5"]
    page.close()


def test_a_click_on_a_column_sorts_a_list_by_its_values(seen: Seen) -> None:
    with Client(seen.url) as client:
        known = client.get_strategy(seen.strategy.rsplit("/", 1)[1])
        (row,) = [each for each in client.strategies() if each["id"] == known["plan_id"]]
        for batch in (4, 32):
            options = {"global_batch": batch, "time_limit_s": 5.0}
            client.wait(client.search(row["model_id"], row["cluster_id"], options=options))
    page = seen.browser.new_page(viewport={"width": NARROW, "height": 800})
    said = complaints(page)
    opened(page, seen, "/strategies")
    assert page.evaluate("document.documentElement.scrollWidth") <= NARROW
    header = page.get_by_role("columnheader", name="Batch")
    at = header.evaluate("(cell) => cell.cellIndex + 1")
    cells = page.locator(f"table[data-sortable] tbody tr > :nth-child({at})")
    header.get_by_role("button").click()
    expect(header).to_have_attribute("aria-sort", "ascending")
    ascending = [int(text.replace(",", "")) for text in cells.all_inner_texts()]
    assert ascending == sorted(ascending) and {4, 8, 32} <= set(ascending)
    header.get_by_role("button").click()
    assert [int(text.replace(",", "")) for text in cells.all_inner_texts()] == ascending[::-1]
    assert said == []
    page.close()


def test_dark_mode_is_a_button_that_is_remembered(seen: Seen) -> None:
    page = seen.browser.new_context(color_scheme="light").new_page()
    opened(page, seen, "/")
    button = page.get_by_role("button", name="Dark mode")
    expect(button).to_have_attribute("aria-pressed", "false")
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    button.click()
    expect(button).to_have_attribute("aria-pressed", "true")
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light
    page.context.close()


def test_rows_of_folded_layers_are_fetched_when_they_are_opened_and_names_are_found(seen: Seen) -> None:
    page = seen.browser.new_page()
    said = complaints(page)
    opened(page, seen, seen.strategy)
    page.get_by_label("Find an op or a parameter").fill("bias")
    found = page.get_by_role("region", name="Matching ops and parameters")
    expect(found).to_be_visible()
    assert all("bias" in row for row in found.get_by_role("rowheader").all_inner_texts())
    page.get_by_text("Download").click()
    with page.expect_download() as download:
        page.get_by_role("link", name="Plan (JSON)").click()
    assert download.value.suggested_filename == f"{seen.strategy.rsplit('/', 1)[1]}.json"
    page.keyboard.press("Escape")
    expect(page.get_by_role("link", name="Plan (JSON)")).to_be_hidden()
    assert said == []
    page.close()


def test_two_ticked_strategies_can_be_compared(seen: Seen) -> None:
    with Client(seen.url) as client:
        first = client.get_strategy(seen.strategy.rsplit("/", 1)[1])
        (known,) = [each for each in client.strategies() if each["id"] == first["plan_id"]]
        model, cluster = known["model_id"], known["cluster_id"]
        client.wait(
            client.search(model, cluster, options={"global_batch": 16, "tensor_parallel": 2, "time_limit_s": 5.0})
        )
    page = seen.browser.new_page()
    said = complaints(page)
    opened(page, seen, "/strategies")
    button = page.get_by_role("button", name="Compare the two")
    expect(button).to_be_disabled()
    for box in page.get_by_role("checkbox").all()[:2]:
        box.check()
    button.click()
    expect(page.get_by_role("heading", name="Comparison of two strategies")).to_be_visible()
    page.set_viewport_size({"width": NARROW, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= NARROW
    expect(page.locator("[aria-busy=true]")).to_have_count(0, timeout=PATIENCE_MS)
    found = Axe().run(page, options=RULES)
    assert found.violations_count == 0, found.generate_report()
    assert said == []
    page.close()
