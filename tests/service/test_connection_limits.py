"""Clients that are slow or send nothing keep nobody out: deadlines, and a limit of connections below that of open files."""

from __future__ import annotations

import errno
import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from autosbp.client import Client
from autosbp.service.connection_limits import DescriptorMonitor
from tests.service import documents
from tests.service.server import Server, rss_mib
from tests.service.test_server import start_search

pytestmark = pytest.mark.integration

_FILES = 256
_LIMIT = _FILES - 128  # of connections, of which the service leaves a share of its files to all else
_STREAMS = _LIMIT * 3 // 4
_WITHIN = ("prlimit", f"--nofile={_FILES // 2}:{_FILES}")  # the service raises its own limit


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Few files, and deadlines of two seconds."""
    folder = tmp_path_factory.mktemp("slow")
    with Server(folder / "data", "tests.service.hurried", within=_WITHIN) as server:
        assert server.url
        assert health(server) == 200
        yield server


@contextmanager
def opened(server: Server, count: int, sent: bytes) -> Iterator[list[socket.socket]]:
    """Connections on which ``sent`` was sent."""
    host, _, port = server.url.removeprefix("http://").partition(":")
    with ExitStack() as stack:
        found = []
        for _ in range(count):
            one = stack.enter_context(socket.create_connection((host, int(port)), timeout=10))
            one.sendall(sent)
            found.append(one)
        yield found


def health(server: Server) -> int:
    return httpx.get(f"{server.url}/healthz", timeout=10, trust_env=False).status_code


def ending(one: socket.socket) -> bytes:
    """What is still said, until the other side closes."""
    one.settimeout(10)
    said = b""
    while part := one.recv(1000):
        said += part
    return said


def test_a_head_that_does_not_come_ends_its_connection(service: Server) -> None:
    assert health(service) == 200
    with ExitStack() as stack:
        parts = (b"", b"GET / HT", b"\r\n", b"GET / HTTP/1.1\r\nHost: localhost\r\n")
        slow = [stack.enter_context(opened(service, 1, sent))[0] for sent in parts]
        begun_s = time.monotonic()
        for one in slow:
            assert ending(one).startswith(b"HTTP/1.1 408 ")
            assert 1 < time.monotonic() - begun_s < 8


def test_a_body_that_does_not_come_ends_its_connection_and_is_no_error(service: Server) -> None:
    head = b"POST /v1/clusters HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n{"
    with opened(service, 1, head) as (one,):
        assert ending(one).startswith(b"HTTP/1.1 408 ")
    assert health(service) == 200
    assert "failed" not in "".join(service.log) and "Traceback" not in "".join(service.log)


def test_a_slow_body_that_goes_on_coming_is_accepted(service: Server) -> None:
    def slowly() -> Iterator[bytes]:
        yield b'{"preset": "local:2"' + b" " * 8000
        for _ in range(7):
            time.sleep(0.5)
            yield b" " * 1000
        yield b"}"

    headers = {"content-type": "application/json"}
    answer = httpx.post(f"{service.url}/v1/clusters", content=slowly(), headers=headers, timeout=20, trust_env=False)
    assert answer.status_code in (200, 201), answer.text


def test_a_body_that_trickles_ends_with_its_time_however_long_it_goes_on(service: Server) -> None:
    head = b"POST /v1/clusters HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 60000\r\n\r\n{"
    with opened(service, 1, head) as (one,):
        begun_s = time.monotonic()
        one.settimeout(0.1)
        said = b""
        while not said and time.monotonic() - begun_s < 12:
            one.sendall(b" " * 200)
            with suppress(TimeoutError):
                said = one.recv(1000)
        assert said.startswith(b"HTTP/1.1 408 ") and time.monotonic() - begun_s < 8


@pytest.mark.parametrize(
    "parts",
    [
        [b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ", *[b"x" * 2**20] * 10, b"\r\n\r\n"],
        [b"GET /", *[b"x" * 2**20] * 10],
        [b"GET / HTTP/1.1\r\n" + b"a:\r\n" * 2**15],
    ],
    ids=["header", "address", "many headers"],
)
def test_a_large_head_is_431_before_it_is_all_there(service: Server, parts: list[bytes]) -> None:
    before_mib = rss_mib(service.pid)
    for _ in range(4):
        with opened(service, 1, b"") as (one,):
            with suppress(ConnectionError):
                for part in parts:
                    one.sendall(part)
            assert ending(one).startswith(b"HTTP/1.1 431 ")
    assert rss_mib(service.pid) - before_mib < 16
    assert health(service) == 200


@pytest.mark.parametrize("trailers", [[b"X: ", *[b"x" * 2**20] * 10], [b"a: b\r\n" * 2**20]], ids=["one", "many"])
def test_large_trailers_end_their_connection(service: Server, trailers: list[bytes]) -> None:
    before_mib = rss_mib(service.pid)
    with opened(service, 1, b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n") as (one,):
        with suppress(ConnectionError):
            for part in trailers:
                one.sendall(part)
        with suppress(ConnectionResetError):
            ending(one)
    assert rss_mib(service.pid) - before_mib < 16
    assert health(service) == 200


def test_a_head_of_less_than_the_limit_is_read(service: Server) -> None:
    headers = {f"x-{number}": "x" * 1000 for number in range(15)}
    assert httpx.get(f"{service.url}/healthz", headers=headers, trust_env=False).status_code == 200


def test_no_more_than_some_requests_of_a_connection_wait(service: Server) -> None:
    many = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n" * 5000
    with opened(service, 1, many) as (one,), suppress(ConnectionResetError):
        assert ending(one).count(b"HTTP/1.1 200 ") <= 65
    assert health(service) == 200


def test_an_address_has_a_share_of_the_connections(tmp_path: Path) -> None:
    with Server(tmp_path / "data", max_connections_of_address=20) as service, opened(service, 20, b"GET / HT") as idle:
        host, _, port = service.url.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port)), timeout=10, source_address=("127.0.0.2", 0)) as other:
            asked = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
            other.sendall(asked)
            assert _said(other).startswith(b"HTTP/1.1 200 ")
            assert health(service) == 200, "the longest idle one of the same address made room"
            assert sum(_said(one).startswith(b"HTTP/1.1 408 ") for one in idle) == 1
            other.sendall(asked)
            assert _said(other).startswith(b"HTTP/1.1 200 "), "and none of another's"
        assert any("20 connections of 127.0.0.1 are open" in line for line in service.log)


def test_requests_in_progress_of_an_address_behind_a_proxy_are_limited(tmp_path: Path) -> None:
    limits = {"max_connections_of_address": 4, "trusted_proxies": "127.0.0.1"}
    head = "POST /v1/clusters HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 50\r\n"
    head += "X-Forwarded-For: {}\r\n\r\n"
    with (
        Server(tmp_path / "data", **limits) as service,
        opened(service, 6, head.format("203.0.113.1").encode()) as several,
    ):
        time.sleep(0.5)
        refused = [one for one in several if b" 429 " in _said(one)]
        assert len(refused) == 2
        asked = {"x-forwarded-for": "203.0.113.2"}
        assert httpx.get(f"{service.url}/healthz", headers=asked, trust_env=False).status_code == 200


def _said(one: socket.socket) -> bytes:
    """What has come, and comes within a moment."""
    one.settimeout(0.3)
    said = b""
    with suppress(TimeoutError):
        while part := one.recv(1000):
            said += part
    return said


def test_after_an_answer_what_begins_no_request_ends_the_connection_too(service: Server) -> None:
    whole = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with opened(service, 1, whole) as (one,):
        assert one.recv(1000).startswith(b"HTTP/1.1 200 ")
        one.sendall(b"\r\n")
        assert b"HTTP/1.1 408 " in ending(one)


def test_clients_that_do_not_read_responses_are_disconnected(service: Server) -> None:
    home = httpx.get(service.url, headers={"accept": "text/html"}, trust_env=False).text
    styles = re.findall(r"/static/[\w./-]+", home)
    sizes = {path: int(httpx.head(service.url + path, trust_env=False).headers["content-length"]) for path in styles}
    path, size = max(sizes.items(), key=lambda one: one[1])
    count = 40_000_000 // size
    with opened(service, 1, f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() * count) as (one,):
        time.sleep(6)
        received = 0
        with suppress(ConnectionResetError):
            while part := one.recv(1_000_000):
                received += len(part)
        assert received < count * size / 2


def test_running_out_of_file_descriptors_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    descriptors = DescriptorMonitor()
    descriptors.check()
    assert not caplog.records
    monkeypatch.setattr("autosbp.service.connection_limits.os.open", full)
    descriptors.check()
    descriptors.check()
    assert [record.getMessage() for record in caplog.records] == [
        "cannot open files or connections: [Errno 24] Too many open files"
    ]


def test_more_idle_connections_than_files_keep_nobody_out(service: Server) -> None:
    with opened(service, _FILES + 50, b"GET / HT") as idle:
        assert [health(service) for _ in range(3)] == [200] * 3, "the longest idle ones made room"
        assert ending(idle[-1]).startswith(b"HTTP/1.1 408 "), "and all end with their time"
    assert any(f"{_LIMIT} connections are open" in line for line in service.log)


def test_streams_are_longer_than_any_deadline_and_are_not_ended_for_others(service: Server) -> None:
    with Client(service.url) as client:
        job = start_search(client).id
        head = f"GET /v1/jobs/{job}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        with opened(service, _STREAMS, head) as streams:
            for one in streams:
                assert one.recv(1000).startswith(b"HTTP/1.1 200 ")
            refused = httpx.get(f"{service.url}/v1/jobs/{job}/events", trust_env=False)
            assert refused.status_code == 429 and f"{_STREAMS} event streams" in refused.json()["detail"]
            with opened(service, _LIMIT, b"GET / HT") as idle:
                assert health(service) == 200
                assert all(ending(one).startswith(b"HTTP/1.1 408 ") for one in idle[-5:])
            time.sleep(1)
            for one in streams:
                one.setblocking(False)
                with pytest.raises(BlockingIOError):
                    while one.recv(100_000):
                        pass


def test_of_streams_that_are_asked_for_at_once_no_more_than_the_limit_are_open(service: Server) -> None:
    with Client(service.url) as client:
        job = start_search(client).id
        head = f"GET /v1/jobs/{job}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        for _ in range(3):  # what ended leaves room again
            with opened(service, _LIMIT - 8, head[:-2]) as streams:
                for one in streams:
                    one.sendall(head[-2:])
                first = [one.recv(12) for one in streams]
            assert sorted(first) == [b"HTTP/1.1 200"] * _STREAMS + [b"HTTP/1.1 429"] * (_LIMIT - 8 - _STREAMS)
            documents.wait_until(lambda: "autosbp_event_streams 0.0" in httpx.get(f"{service.url}/metrics").text)
