"""Bodies are limited as they arrive: by route, after their caller is known, and all of them together."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import httpx
import pytest

from autosbp.service.auth.caller import SCOPES
from autosbp.service.db import Database
from autosbp.service.problem_details import ProblemError
from autosbp.service.request_limits import BodyBudget
from autosbp.service.services import keys
from tests.service.server import Server, rss_mib

pytestmark = pytest.mark.integration

MIB = 2**20
FORM = "application/x-www-form-urlencoded"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bodies")


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[Server]:
    with Server(folder, require_keys=True) as server:
        assert httpx.get(f"{server.url}/readyz").status_code == 200
        yield server


@pytest.fixture(scope="module")
def key(service: Server, folder: Path) -> str:
    with closing(Database(f"sqlite:///{folder / 'autosbp.db'}")) as database:
        return keys.create(database.of("lab"), "test", SCOPES).text


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (f"POST /sign-in HTTP/1.1\r\nSec-Fetch-Site: same-origin\r\nContent-Type: {FORM}", 413),
        ("POST /v1/models HTTP/1.1\r\nContent-Type: application/json", 401),
        ("POST /plan HTTP/1.1\r\nSec-Fetch-Site: same-origin", 401),
        ("POST /nowhere HTTP/1.1\r\nContent-Type: application/json", 404),
    ],
)
def test_strangers_are_answered_before_a_byte_of_their_bodies_is_read(service: Server, head: str, status: int) -> None:
    before_mib = rss_mib(service.pid)
    with ExitStack() as stack:
        line, _, headers = head.partition(" HTTP/1.1\r\n")
        host, _, port = service.url.removeprefix("http://").partition(":")
        for _ in range(20):
            one = stack.enter_context(socket.create_connection((host, int(port)), timeout=5))
            declared = f"{line} HTTP/1.1\r\nHost: {host}:{port}\r\n{headers}\r\nContent-Length: {64 * MIB}\r\n\r\n"
            one.sendall(declared.encode() + b"key=x")
            assert one.recv(12) in (f"HTTP/1.1 {status}".encode(), b"HTTP/1.1 429")
        assert rss_mib(service.pid) - before_mib < 32


@pytest.mark.parametrize(
    ("path", "most"),
    [
        ("/v1/keys", 2**16),
        ("/v1/jobs/job-x:cancel", 2**16),
        ("/v1/clusters", MIB),
        ("/v1/searches", MIB),
        ("/v1/models", 64 * MIB),
    ],
)
def test_each_route_has_its_limit(service: Server, key: str, path: str, most: int) -> None:
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json", "idempotency-key": "large"}
    with httpx.Client(base_url=service.url, headers=headers, timeout=60) as client:
        for content in (b" " * (most + 1), iter([b" " * most, b" "])):
            answer = client.post(path, content=content)
            assert answer.status_code == 413, answer.text
            assert (answer.json()["field"], answer.json()["limit"]) == ("body", f"expected at most {most} bytes")
        assert client.post(path, content=b" " * 1000).status_code in (404, 422)


def test_a_budget_is_of_all_bodies_and_of_each_tenant() -> None:
    budget = BodyBudget(10, 6)
    budget.take("a", 6)
    for tenant, number in (("a", 1), ("b", 5)):
        with pytest.raises(ProblemError, match="try again later") as refused:
            budget.take(tenant, number)
        assert refused.value.status == 503 and int(refused.value.headers["retry-after"]) > 0
    budget.take("b", 4)
    budget.release("a", 6)
    budget.take("c", 6)


def test_many_uploads_at_once_take_no_more_than_the_budget(service: Server, key: str) -> None:
    """Sixty of 64 MiB, of one tenant: of them those come through that there is room for, and no other request is kept out."""
    before_mib, most_mib, statuses = rss_mib(service.pid), 0.0, list[int]()
    host, _, port = service.url.removeprefix("http://").partition(":")
    head = (
        f"POST /v1/models HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {60 * MIB}\r\n\r\n"
    )
    with ExitStack() as stack:
        found = [stack.enter_context(socket.create_connection((host, int(port)), timeout=0.05)) for _ in range(60)]
        for one in found:
            one.sendall(head.encode())
        for _ in range(20):
            for one in found:
                try:
                    one.send(b" " * MIB)
                except OSError:
                    continue
            most_mib = max(most_mib, rss_mib(service.pid) - before_mib)
        for one in found:
            try:
                statuses.append(int(one.recv(1000)[9:12] or 0))
            except OSError:
                statuses.append(0)
        known = {"authorization": f"Bearer {key}"}
        assert httpx.post(f"{service.url}/v1/clusters", json={"preset": "local:2"}, headers=known).status_code == 201
    assert statuses.count(503) >= 58 and set(statuses) <= {0, 503}, statuses
    assert most_mib < 160
