"""ONNX files through the form in a real browser: chosen by keyboard, told of where they are wrong, and planned."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from autosbp.service.web.presenters.plan_form import max_file_bytes
from tests.service import onnx_files
from tests.service.server import Server
from tests.service.web.browser import browser, complaints
from tests.service.web.test_browser import PATIENCE_MS, RULES, press_until

pytestmark = pytest.mark.integration

LIMIT = 200_000


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """The form of a service that takes small bodies only; whatever happens, its pages complain of nothing."""
    with (
        browser() as opened,
        Server(tmp_path_factory.mktemp("files"), max_body_bytes=LIMIT, access_log=False) as server,
    ):
        page = opened.new_context(base_url=server.url).new_page()
        said = complaints(page)
        page.on("filechooser", lambda _: None)  # from the first to the last: none opens a dialogue that nobody sees
        yield page
        assert [words for words in said if "422" not in words] == []


def filled(page: Page) -> None:
    """The form by keyboard up to the file: its source, and what comes behind it."""
    page.goto("/plan")
    press_until(page, "Tab", "source")
    for _ in range(2):
        page.keyboard.press("ArrowRight")
    expect(page.get_by_label("ONNX file", exact=True).nth(0)).to_be_checked()
    page.get_by_label("Preset", exact=True).select_option("local")
    page.get_by_label("Nodes").fill("2")
    page.get_by_label("Samples per step").fill("8")
    page.get_by_label("Search for at most").fill("5")


def choose(page: Page, path: Path) -> None:
    """As a keyboard does: to the button, Enter, the browser's own dialogue."""
    page.get_by_role("radio", name="ONNX file").focus()
    press_until(page, "Tab", "onnx")
    with page.expect_file_chooser() as opened:
        page.keyboard.press("Enter")
    opened.value.set_files(path)


def expect_kept(page: Page, *cluster: tuple[str, str]) -> None:
    """What was filled in is still there, and a reader of the screen is told all of it."""
    expect(page.get_by_role("radio", name="ONNX file")).to_be_checked()
    chosen = cluster or (("Preset", "local"), ("Nodes", "2"))
    for label, value in (*chosen, ("Samples per step", "8"), ("Search for at most", "5")):
        expect(page.get_by_label(label, exact=label in ("Preset", "Cluster"))).to_have_value(value)
    found = Axe().run(page, options=RULES)
    assert found.violations_count == 0, found.generate_report()


def test_a_file_is_chosen_by_keyboard_and_its_plan_appears(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "perceptron.onnx"
    path.write_bytes(onnx_files.good())
    filled(page)
    choose(page, path)
    page.get_by_role("button", name="Find the best plan").focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/searches/*", timeout=PATIENCE_MS)
    expect(page.get_by_role("heading", name="The plan is ready")).to_be_visible(timeout=PATIENCE_MS)
    assert "perceptron" in page.locator("main").inner_text()
    page.go_back()  # the page that waited for the capture has nothing to show
    assert page.url.endswith("/plan")
    expect_kept(page)


def test_a_tab_that_is_closed_after_the_form_was_sent_loses_nothing(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "unattended.onnx"
    path.write_bytes(onnx_files.good())
    tab = page.context.new_page()
    filled(tab)
    tab.get_by_label("Samples per step").fill("4")
    tab.locator("#onnx").set_input_files(path)
    tab.get_by_role("button", name="Find the best plan").click()
    tab.wait_for_url("**/plan/captures/*")
    tab.close()
    page.goto("/strategies")
    found = page.get_by_role("cell", name="unattended")
    for _ in range(60):
        if found.count():
            break
        page.wait_for_timeout(500)
        page.reload()
    expect(found.first).to_be_visible()


def test_a_file_that_is_too_large_is_not_sent_and_another_one_can_be(page: Page, tmp_path: Path) -> None:
    large, small = tmp_path / "large.onnx", tmp_path / "small.onnx"
    large.write_bytes(bytes(10 * LIMIT))
    small.write_bytes(b"nothing")
    filled(page)
    choose(page, large)
    words = f"ONNX file: large.onnx has {10 * LIMIT:,} bytes; expected at most {max_file_bytes(LIMIT):,} bytes."
    expect(page.get_by_role("alert")).to_have_text(words)
    field = page.locator("#onnx")
    expect(field).to_have_attribute("aria-invalid", "true")
    expect(field).to_have_accessible_description(f"{page.locator('#onnx-note').inner_text()} {words}")
    page.get_by_role("button", name="Find the best plan").click()
    expect_kept(page)
    assert page.url.endswith("/plan") and page.evaluate("document.activeElement.id") == "onnx"
    choose(page, small)
    expect(page.get_by_text(words)).to_have_count(0)
    page.get_by_role("button", name="Find the best plan").click()
    expect(page.get_by_role("alert")).to_contain_text("expected an ONNX file")
    expect_kept(page)
    page.go_back()
    expect_kept(page)
    expect(field).to_be_enabled()
    assert page.evaluate("document.getElementById('onnx').files[0].name") == "small.onnx"


@pytest.mark.some(2)
@pytest.mark.parametrize("bad", onnx_files.refused(), ids=lambda bad: bad.name)
def test_what_is_wrong_with_a_file_is_told_in_the_form(page: Page, tmp_path: Path, bad: onnx_files.Refused) -> None:
    path = tmp_path / bad.name
    path.write_bytes(bad.content)
    filled(page)
    choose(page, path)
    page.get_by_role("button", name="Find the best plan").click()
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text(bad.words)
    expect(alert).to_contain_text(bad.field)
    expect_kept(page)


def test_a_model_that_cannot_be_captured_leads_back_by_a_button(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "wide.onnx"
    path.write_bytes(onnx_files.of_any_width())
    filled(page)
    choose(page, path)
    page.get_by_role("button", name="Find the best plan").click()
    back = page.get_by_role("link", name="Back to the form")
    back.wait_for(timeout=PATIENCE_MS)
    back.click()
    expect(page.get_by_role("alert")).to_contain_text("fixed sizes for all dims except the batch")
    (cluster,) = page.request.get("/v1/clusters").json()["items"]
    expect_kept(page, ("Cluster", cluster["id"]))


def test_a_configuration_is_read_from_a_file_unless_it_is_too_large(page: Page, tmp_path: Path) -> None:
    config, large = tmp_path / "config.json", tmp_path / "large.json"
    config.write_text('{"model_type": "abacus"}')
    large.write_bytes(bytes(LIMIT))
    page.goto("/plan")
    page.get_by_role("radio", name="Hugging Face configuration").check()
    file, text = page.get_by_label("Choose a config.json"), page.get_by_label("config.json", exact=True)
    file.set_input_files(config)
    expect(text).to_have_value('{"model_type": "abacus"}')
    file.set_input_files(large)
    expect(page.get_by_role("alert")).to_contain_text(
        f"large.json has {LIMIT:,} bytes; expected at most {max_file_bytes(LIMIT):,}"
    )
    expect(text).to_have_value('{"model_type": "abacus"}')
