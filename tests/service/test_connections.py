"""Clients that are slow or send nothing keep nobody out: deadlines, and a limit of connections below that of open files."""

from __future__ import annotations

import errno
import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import httpx
import pytest

from autosbp.client import Client
from service.connections import Descriptors
from tests.service import documents
from tests.service.server import Server
from tests.service.test_server import start_search

_FILES = 256
_LIMIT = _FILES - 128  # of connections, of which the service leaves a share of its files to all else
_STREAMS = _LIMIT * 3 // 4
_WITHIN = ("prlimit", f"--nofile={_FILES // 2}:{_FILES}")  # the service raises its own limit


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Few files, and deadlines of two seconds."""
    folder = tmp_path_factory.mktemp("slow")
    with Server(folder / "data", "tests.service.hurried", within=_WITHIN) as server:
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
            yield b" " * 100
        yield b"}"

    headers = {"content-type": "application/json"}
    answer = httpx.post(f"{service.url}/v1/clusters", content=slowly(), headers=headers, timeout=20, trust_env=False)
    assert answer.status_code in (200, 201), answer.text


def test_after_an_answer_what_begins_no_request_ends_the_connection_too(service: Server) -> None:
    whole = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with opened(service, 1, whole) as (one,):
        assert one.recv(1000).startswith(b"HTTP/1.1 200 ")
        one.sendall(b"\r\n")
        assert b"HTTP/1.1 408 " in ending(one)


def test_who_reads_no_answer_is_cut_off(service: Server) -> None:
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


def test_that_no_file_can_be_opened_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    descriptors = Descriptors()
    descriptors.check()
    assert not caplog.records
    monkeypatch.setattr("service.connections.os.open", full)
    descriptors.check()
    descriptors.check()
    assert [record.getMessage() for record in caplog.records] == [
        "no file or connection can be opened: [Errno 24] Too many open files"
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
