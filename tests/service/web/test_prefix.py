"""The service below a path of another site: programs, the command line and a browser, through a proxy in front of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, expect
from playwright.sync_api import Page as Tab
from typer.testing import CliRunner

from autosbp.cli import app
from autosbp.client import Client
from autosbp.errors import InputError
from autosbp.service.app import create_app
from autosbp.service.settings import Settings, read_settings
from tests.service import documents
from tests.service.proxy import Proxy
from tests.service.server import Server
from tests.service.web.browser import browser, complaints
from tests.service.web.html import Page
from tests.service.web.test_browser import PATIENCE_MS, plan_by_keyboard

pytestmark = pytest.mark.integration

ROOT = "/planner"
LINKS = "[...document.querySelectorAll('a[href]')].map((one) => one.getAttribute('href'))"
ADDRESSES = """[...document.querySelectorAll('*')].flatMap((one) => [...one.attributes])
  .filter((one) => one.value.startsWith('/') && !['data-root', 'data-path', 'value'].includes(one.name))
  .map((one) => one.value)"""
"""Whatever attribute they are in; what is in a field is for the service to read, and /docs names paths as openapi.json."""


@pytest.fixture(scope="module", params=[True, False], ids=["stripped", "passed-on"])
def proxy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    folder = tmp_path_factory.mktemp("below")
    with (
        Server(folder, root_path=f"{ROOT}/", trusted_proxies="127.0.0.1") as server,
        Proxy(ROOT, server.url, strips=request.param) as proxy,
    ):
        yield proxy


@pytest.fixture(scope="module")
def opened() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


@pytest.mark.some(2)
def test_programs_and_the_command_line_work_below_a_path(proxy: Proxy, tmp_path: Path) -> None:
    with Client(proxy.url) as client, httpx.Client() as plain:
        model = client.post_model(documents.graph())
        cluster = client.post_cluster(documents.cluster())
        assert client.wait(client.search(model, cluster, options=documents.OPTIONS)).result["strategy_id"]
        asked = {"model_id": model, "cluster_id": cluster, "options": {**documents.OPTIONS, "seed": 1}}
        posted = plain.post(f"{proxy.url}/v1/searches", json=asked)
        assert posted.headers["location"] == f"{ROOT}/v1/jobs/{posted.json()['id']}"
        at = httpx.URL(proxy.url).join(posted.headers["location"])
        with plain.stream("GET", f"{at}/events", timeout=60.0) as stream:
            assert any(line == "event: end" for line in stream.iter_lines())
        assert plain.get(at).json()["state"] == "succeeded"
        first = plain.get(f"{proxy.url}/v1/jobs", params={"limit": 1}).json()
        assert plain.get(f"{proxy.url}/v1/jobs", params={"cursor": first["next_cursor"]}).json()["items"]
        assert plain.get(f"{proxy.url}/openapi.json").json()["servers"] == [{"url": ROOT}]
        refused = plain.get(proxy.url.removesuffix(ROOT) + "/v1/jobs")
        assert refused.status_code == 404 and proxy.outside.pop() == "/v1/jobs"
    out = tmp_path / "plan.json"
    ask = ["plan", "zoo:mlp-small", "--cluster", "local:2", "--global-batch", "8", "--server", proxy.url]
    done = CliRunner().invoke(app, [*ask, "--output", str(out)])
    assert done.exit_code == 0, done.output
    assert json.loads(out.read_text())["step_time_s"] > 0
    assert proxy.outside == []


def walk(tab: Tab, proxy: Proxy) -> set[str]:
    """Follow every link from the first page on, one of each kind of page; the paths that were seen, below the service's."""
    seen, left, kinds = set[str](), [ROOT], set[tuple[str, ...]]()
    origin = proxy.url.removesuffix(ROOT)
    while left:
        path = left.pop(0)
        parts = path.partition("?")[0][len(ROOT) + 1 :].split("/")
        kind = tuple("ID" if number == 1 else part for number, part in enumerate(parts))
        if path in seen or kind in kinds:
            continue
        seen.add(path)
        kinds.add(kind)
        answer = tab.goto(origin + path)
        assert answer is not None and answer.status == 200, path
        expect(tab.locator("[aria-busy=true]")).to_have_count(0, timeout=PATIENCE_MS)
        addresses = tab.evaluate(ADDRESSES)
        assert [each for each in addresses if not each.startswith(f"{ROOT}/")] == [], path
        for address in tab.evaluate(LINKS):
            here = address.partition("#")[0]
            if here.startswith("/") and not any(each in here for each in ("/plan.json", "/exports/", "/files/")):
                left.append(here.rstrip("/"))
    return {path[len(ROOT) :].partition("?")[0] for path in seen}


@pytest.mark.some(2)
def test_a_browser_plans_and_finds_every_page_below_the_path(proxy: Proxy, opened: Browser) -> None:
    tab = opened.new_page()
    said = complaints(tab)
    search = plan_by_keyboard(tab, proxy.url)
    tab.goto(proxy.url + search)
    tab.get_by_role("link", name="Open the plan").click()
    tab.wait_for_url(f"{proxy.url}/strategies/*")
    seen = walk(tab, proxy)
    assert {"", "/plan", "/strategies", "/models", "/clusters", "/trials", "/jobs", "/openapi.json"} <= seen
    assert any(path.startswith("/strategies/") for path in seen)
    assert (proxy.outside, said) == ([], [])
    tab.close()


def test_a_session_is_of_the_path_alone_and_signing_in_goes_on_where_it_was_asked_for(
    tmp_path: Path, opened: Browser
) -> None:
    with Server(tmp_path, root_path=ROOT, require_keys=True) as server, Proxy(ROOT, server.url, strips=True) as proxy:
        made = CliRunner().invoke(
            app, ["keys", "create", "--name", "n", "--scopes", "read,admin", "--data-dir", str(tmp_path)]
        )
        assert made.exit_code == 0, made.output
        key = next(word for word in made.output.split() if word.startswith("asbp_"))
        context = opened.new_context()
        tab = context.new_page()
        tab.goto(f"{proxy.url}/jobs")
        tab.locator("input[name=key]").fill(key)
        tab.get_by_role("button", name="Sign in").click()
        tab.wait_for_url(f"{proxy.url}/jobs")
        expect(tab.get_by_role("heading", name="Jobs", exact=True)).to_be_visible()
        assert [cookie["path"] for cookie in context.cookies()] == [f"{ROOT}/"]
        tab.get_by_role("button", name="Sign out").click()
        tab.wait_for_url(f"{proxy.url}/sign-in")
        assert (context.cookies(), proxy.outside) == ([], [])
        context.close()


def test_every_address_of_a_page_is_below_the_path_and_the_others_are_as_they_were(tmp_path: Path) -> None:
    from starlette.testclient import TestClient

    def links(root: str) -> list[str]:
        with TestClient(create_app(Settings(data_dir=tmp_path, root_path=root)), "http://localhost") as client:
            return Page.of(client.get("/plan", headers={"accept": "text/html"}).text).links()

    plain = links("")
    assert len(plain) > 10
    assert links(ROOT) == [ROOT + link for link in plain]


@pytest.mark.parametrize("bad", ["planner", "/a//b", "//host", "/a b", "/..", '/"', "/?a", "/" + "a" * 200])
def test_what_is_no_path_is_refused(bad: str) -> None:
    with pytest.raises(InputError, match="root_path"):
        read_settings(root_path=bad)


@pytest.mark.parametrize("own", ["/v1", "/models/x", "/static", "/plan", "/healthz"])
def test_a_path_that_begins_as_the_services_own_is_refused(tmp_path: Path, own: str) -> None:
    with pytest.raises(InputError, match="root_path"):
        create_app(Settings(data_dir=tmp_path, root_path=own))
