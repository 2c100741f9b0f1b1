"""Whatever headers and queries browsers, proxies and attackers send to pages: never an internal error, and always a page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from autosbp.service.settings import Settings
from autosbp.service.web.sessions import COOKIE
from tests.service.conftest import running
from tests.service.endpoints import endpoints
from tests.service.web.conftest import FORM, HTML

pytestmark = pytest.mark.integration

_BRACKETS = (
    b"http://[",
    b"http://[::1",
    b"http://]/",
    b"//[x",
    b"http://a:b:c",
    b"http://a:99999999999",
    b"http://\xff\xfe",
)
_LISTS = (b"", b",", b";", b"=", b'"', b"*", b"\xff\x80", b"a" * 6000, b"text/html;q=[", b"*/*;q=1e999", b"de;q=-1,,;")
_NASTY: dict[str, tuple[bytes, ...]] = {
    "origin": (*_BRACKETS, b"", b"null", b"a" * 6000),
    "referer": (*_BRACKETS, b"", b"%5b", b"a" * 6000),
    "cookie": (*_LISTS, *(f"{COOKIE}={value}".encode() for value in ("", '"\\400"', "[", "a.b.c.d", "x" * 6000))),
    "accept": (b"text/html,[", *_LISTS),
    "accept-language": _LISTS,
    "accept-encoding": _LISTS,
    "range": (b"bytes=", b"bytes=5-1", b"bytes=0-" + b"9" * 5000, b"bytes=-", b"[", b"\xff"),
    "if-none-match": (b'W/"', b'"', *_LISTS),
    "if-modified-since": (b"[", b"Thu, 99 Foo 99999 99:99:99 GMT", b"\xff"),
    "host": (
        b"[",
        b"]",
        b"[::1",
        b"a:b:c",
        b"localhost:",
        b"localhost:99999999",
        b"\xff\xfe",
        b"http://[",
        b"a/b?c#d",
        b"",
    ),
    "sec-fetch-site": (b"", b"[", b"\xff"),
    "hx-request": (b"true", b"[", b"\xff"),
    "content-type": (b"", b"[", b"multipart/form-data", b"multipart/form-data; boundary=\xff", b"text/html; charset=["),
    "content-encoding": (b"gzip", b"[", b"\xff"),
    "x-request-id": (b"[", b"\xff"),
    "x-forwarded-for": (b"[", b"\xff", b"1.2.3.4:99999999999999"),
    "x-forwarded-proto": (b"[", b"\xff"),
    "authorization": (b"Bearer", b"Bearer [", b"Basic \xff", b"\xff"),
}


@pytest.fixture(scope="module", params=[False, True], ids=["open", "locked"])
def service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    settings = Settings(
        data_dir=tmp_path_factory.mktemp("headers"),
        require_keys=request.param,
        rate_limit_burst=1e6,
        wrong_keys_burst=1e6,
        access_log=False,
    )
    with running(settings) as client:
        client.follow_redirects = False
        yield client


def _pages(client: TestClient) -> list[tuple[str, str]]:
    app: Any = client.app
    found = {(one.method, re.sub(r"\{[\w:]+\}", "a-1", one.path)) for one in endpoints(app)}
    return sorted((method, path) for method, path in found if not path.startswith("/v1"))


_EVERYWHERE = ("origin", "host")


@pytest.mark.some(2)
def test_no_header_makes_a_page_fail(service: TestClient) -> None:
    """Every value of what is parsed in many places goes to every page, of the others each to some of them."""
    wrong, asked = [], 0
    for number, (method, path) in enumerate(_pages(service)):
        usual = {**HTML, **(FORM if method == "POST" else {})}
        for name, values in _NASTY.items():
            for value in values if name in _EVERYWHERE else (values[number % len(values)],):
                headers: dict[str, Any] = {**usual, name: value}
                if method == "POST":
                    headers.setdefault("content-type", "application/x-www-form-urlencoded")
                service.cookies.clear()
                answer = service.request(method, path, headers=headers, content=b"a=1" if method == "POST" else None)
                asked += 1
                if answer.status_code >= 500:
                    wrong.append((method, path, name, value[:40], answer.status_code))
    assert not wrong, wrong[:20]
    assert asked > 500


@pytest.mark.parametrize("path", ["/sign-in", "/sign-out", "/plan"])
def test_a_form_whose_origin_is_no_address_is_refused_as_a_foreign_one(service: TestClient, path: str) -> None:
    service.cookies.clear()
    answer = service.post(path, headers={**HTML, "origin": "http://["}, content=b"")
    assert answer.status_code in ((403,) if path != "/plan" else (401, 403))


@pytest.mark.parametrize(
    "following", ["http://%5b", "http://%5B::1", "//%5b", "/%5c/%5b", "%ff", "/" + "a" * 3000, "/a%0d%0ab"]
)
def test_signing_in_to_go_on_to_what_is_no_address_is_a_page(service: TestClient, following: str) -> None:
    service.cookies.clear()
    answer = service.get(f"/sign-in?following={following}", headers=HTML)
    assert answer.status_code in (200, 303), answer.text
    if answer.status_code == 200:
        assert answer.headers["content-type"].startswith("text/html") and 'value="/"' in answer.text


def test_no_query_makes_a_page_fail(service: TestClient) -> None:
    values = ("%ff", "%00", "[", "%5b", "-1", "9" * 400, "a" * 3000, "%0d%0a", "&&=&;", "null", "1e999")
    names = (
        "following",
        "cursor",
        "limit",
        "a",
        "b",
        "source",
        "searcher",
        "state",
        "kind",
        "at",
        "model_id",
        "unknown",
    )
    wrong = []
    for path in sorted({path for method, path in _pages(service) if method == "GET"}):
        for value in values:
            query = "&".join(f"{name}={value}" for name in names)
            answer = service.get(f"{path}?{query}", headers=HTML)
            if answer.status_code >= 500:
                wrong.append((path, value[:20], answer.status_code))
    assert not wrong, wrong
