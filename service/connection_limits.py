"""Deadlines and limits per connection, so that slow, idle or flooding clients do not lock out others.

- A request's head must arrive within ``HEAD_S`` and have at most ``HEAD_BYTES`` (else 431).
- A body must arrive within ``BODY_S`` plus its size at ``MIN_BODY_BYTES_PER_S``.
- A client that reads nothing of an answer for ``READ_S`` is disconnected. Event streams may last forever.
- At the limit of all connections, or of those of one address, the connection that has been idle longest is closed to
  make room. If none is idle, the new connection is refused.

``autosbp.service.request_limits`` limits the size of bodies, which depends on the route. This module decides what comes before
a request exists. uvicorn has no hook for that but its protocol class; ``pyproject.toml`` pins the uvicorn releases that
are tested.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from autosbp.service.auth.caller import rate_limit_address

_log = logging.getLogger("autosbp.service.connection_limits")
HEAD_S, BODY_S, READ_S, LINGER_S = 20.0, 20.0, 60.0, 5.0
HEAD_BYTES = 16 * 2**10
MIN_BODY_BYTES_PER_S = 16 * 2**10
_HEADER_BYTES = 32  # counted per header besides its length, as in HTTP/2: short headers use as much memory as long ones
_MAX_PIPELINED = 64
# file descriptors reserved for everything but connections: at least 128 and 1 / _SHARE of all
_RESERVED, _RESERVED_FRACTION_INVERSE = 128, 4
_MIN_CONNECTIONS = 16
_READ_PAUSE_S = 1.0
_WARNING_INTERVAL_S = 60.0
_ANSWER = "HTTP/1.1 {}\r\n{}connection: close\r\ncontent-length: 0\r\n\r\n"
_REQUEST_TIMEOUT_RESPONSE = _ANSWER.format("408 Request Timeout", "").encode()
_HEAD_TOO_LARGE = _ANSWER.format("431 Request Header Fields Too Large", "").encode()
_TOO_MANY = _ANSWER.format("429 Too Many Requests", "retry-after: 5\r\n").encode()
_UNAVAILABLE_RESPONSE = _ANSWER.format("503 Service Unavailable", "retry-after: 5\r\n").encode()


class Connection(HttpToolsProtocol):
    """A uvicorn connection with deadlines for head, body and reading. ``make_connection_class`` sets the class attributes."""

    limit: ClassVar[int] = 0
    limit_of_address: ClassVar[int] = 0
    proxies: ClassVar[Sequence[IPv4Network | IPv6Network]] = ()
    num_of_address: ClassVar[Counter[str]] = Counter()
    _last_warning_s: ClassVar[float] = -_WARNING_INTERVAL_S

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._deadline_start_s: float | None = None  # when the awaited head or body began
        self._received = 0  # bytes of the body since then
        self._in_body = False
        self._head_bytes = 0  # size of the request's head and trailers
        self._unparsed_bytes = 0  # bytes received that no parsed part of a request accounts for
        self._refusal: bytes | None = None
        self._client_slow_since_s: float | None = None
        self._idle_s = self.loop.time()
        self._address = ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept the connection, closing an idle one if a limit is reached, or refuse it."""
        super().connection_made(transport)
        self._address = "" if self.client is None else self._limit_key(self.client[0])
        self.num_of_address[self._address] += 1
        self._start_deadline(in_body=False)
        if self._address and self.num_of_address[self._address] > self.limit_of_address:
            if not self._evict_longest_idle(self.limit_of_address, self._address):
                self._close_with(_TOO_MANY)
        elif len(self.connections) > self.limit and not self._evict_longest_idle(self.limit):
            self._close_with(_UNAVAILABLE_RESPONSE)

    def connection_lost(self, exc: Exception | None) -> None:
        """Free the connection's place."""
        super().connection_lost(exc)
        self.num_of_address[self._address] -= 1
        if not self.num_of_address[self._address]:
            del self.num_of_address[self._address]

    def data_received(self, data: bytes) -> None:
        """Handle received bytes of a head or body; the rest of a refused request is not read."""
        if self._refusal is not None:
            self._pause_reading()
            return
        if self._deadline_start_s is None and self._has_no_pending_response():
            self._start_deadline(
                in_body=False
            )  # bytes that begin no request stop uvicorn's own idle timeout, so this deadline replaces it
        self._unparsed_bytes += len(data)
        super().data_received(data)
        if self._unparsed_bytes > HEAD_BYTES:
            self._refusal = _HEAD_TOO_LARGE
        if self._refusal is not None:
            self._refuse()
        elif self._in_body and self._deadline_start_s is not None and self._has_no_pending_response():
            self._pause_reading()

    def on_message_begin(self) -> None:
        """Handle the first byte of a request's head."""
        super().on_message_begin()
        self._start_deadline(in_body=False)
        self._head_bytes = self._unparsed_bytes = 0
        if len(self.pipeline) >= _MAX_PIPELINED:
            self._refusal = _TOO_MANY

    def on_url(self, url: bytes) -> None:
        """Handle a part of the URL."""
        if self._count_head_bytes(len(url)):
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Handle a header; trailers after the body count towards the limit and are ignored."""
        if self._count_head_bytes(len(name) + len(value) + _HEADER_BYTES) and not self._in_body:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Handle the end of a request's head."""
        if self._refusal is None:
            super().on_headers_complete()
            self._start_deadline(in_body=True)

    def on_body(self, body: bytes) -> None:
        """Handle a part of a body."""
        if self._refusal is None:
            super().on_body(body)
            self._received += len(body)
            self._unparsed_bytes = 0

    def on_message_complete(self) -> None:
        """Handle the end of a request: the client waits for the answer from here on."""
        if self._refusal is None:
            super().on_message_complete()
            self._deadline_start_s = None

    def on_response_complete(self) -> None:
        """Start the idle time; the client may still send the rest of a body that is not read."""
        super().on_response_complete()
        self._idle_s = self.loop.time()

    def pause_writing(self) -> None:
        """Start the read deadline: the client reads slower than the service sends."""
        super().pause_writing()
        self._client_slow_since_s = self.loop.time()

    def resume_writing(self) -> None:
        """Stop the read deadline: the client reads again."""
        super().resume_writing()
        self._client_slow_since_s = None

    def end_if_late(self, now_s: float) -> None:
        """Close the connection if it is past its deadline; called about once a second."""
        if self._client_slow_since_s is not None and now_s - self._client_slow_since_s > READ_S:
            self.transport.abort()
        elif self.transport.is_closing():
            return
        elif self._deadline_start_s is None or (self.flow.read_paused and not self._has_no_pending_response()):
            return  # the service is busy with the request, not the client
        elif now_s - self._deadline_start_s > self._timeout_s():
            self._close_with(_REQUEST_TIMEOUT_RESPONSE if self._refusal is None else b"")

    def _timeout_s(self) -> float:
        if self._refusal is not None:
            return LINGER_S
        if not self._in_body:
            return HEAD_S
        if self._has_no_pending_response():
            return LINGER_S + self._idle_s - (self._deadline_start_s or 0.0)  # the rest of a body that is not read
        return BODY_S + self._received / MIN_BODY_BYTES_PER_S

    def _start_deadline(self, *, in_body: bool) -> None:
        self._deadline_start_s, self._received, self._in_body = self.loop.time(), 0, in_body

    def _count_head_bytes(self, num_bytes: int) -> bool:
        """Count bytes of the head and return whether it is still within ``HEAD_BYTES``."""
        self._head_bytes, self._unparsed_bytes = self._head_bytes + num_bytes, 0
        if self._head_bytes > HEAD_BYTES:
            self._refusal = _HEAD_TOO_LARGE
        return self._refusal is None

    def _pause_reading(self) -> None:
        """Pause reading for a while: nobody needs this data, and its sender must not take processor time from others."""
        self.flow.pause_reading()
        self.loop.call_later(_READ_PAUSE_S, self._resume_reading)

    def _resume_reading(self) -> None:
        if not self.transport.is_closing():
            self.flow.resume_reading()

    def _has_no_pending_response(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _refuse(self) -> None:
        """Send the refusal, then close once the client has read it.

        An immediate close would make a client that is still sending miss the answer.
        """
        if self.transport.is_closing():
            return
        if not self._has_no_pending_response():  # an earlier request is being answered
            self.transport.abort()
            return
        self._deadline_start_s = self.loop.time()
        self.transport.write(self._refusal or b"")
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def _close_with(self, answer: bytes) -> None:
        if answer and (self._has_no_pending_response() or not self.cycle.response_started):
            self.transport.write(answer)
        self.transport.close()

    def _limit_key(self, address: str) -> str:
        """Key under which an address's connections are counted; "" for a trusted proxy, which carries many addresses."""
        return "" if any(ip_address(address) in each for each in self.proxies) else rate_limit_address(address)

    def _evict_longest_idle(self, limit: int, address: str | None = None) -> bool:
        """Close the connection that has been idle longest, of ``address`` if given; False if none is idle."""
        others = [each for each in self.connections if isinstance(each, Connection) and each is not self]
        of_these = [each for each in others if address in (None, each._address)]
        idle = [each for each in of_these if each._is_idle() and not each.transport.is_closing()]
        whose = "" if address is None else f" of {address}"
        self._warn_once_per_interval(f"{limit} connections{whose} are open, {len(idle)} of them idle")
        if not idle:
            return False
        min(
            idle, key=lambda each: each._idle_s if each._deadline_start_s is None else each._deadline_start_s
        )._close_with(_REQUEST_TIMEOUT_RESPONSE)
        return True

    def _is_idle(self) -> bool:
        """Whether the connection is waiting for its client."""
        return self._deadline_start_s is not None or self._has_no_pending_response()

    @classmethod
    def _warn_once_per_interval(cls, words: str) -> None:
        if time.monotonic() - Connection._last_warning_s >= _WARNING_INTERVAL_S:
            Connection._last_warning_s = time.monotonic()
            _log.warning("%s; closing the longest idle ones", words)


def make_connection_class(most: int, most_of_address: int, proxies: Iterable[str]) -> type[Connection]:
    """Return a connection class with these limits.

    Args:
        most: limit of all connections, reduced by ``clamp_to_descriptors``.
        most_of_address: limit per client address, except for proxies.
        proxies: networks of trusted proxies.
    """
    members = {
        "limit": clamp_to_descriptors(most),
        "limit_of_address": most_of_address,
        "proxies": tuple(map(ip_network, proxies)),
        "num_of_address": Counter(),
    }
    return type("Connection", (Connection,), members)


def clamp_to_descriptors(most: int) -> int:
    """Return ``most``, or the number of connections that file descriptors allow if that is smaller."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(most, max(_MIN_CONNECTIONS, soft - max(_RESERVED, soft // _RESERVED_FRACTION_INVERSE)))


def raise_descriptors() -> None:
    """Raise the soft limit of open files to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class DescriptorMonitor:
    """Logs, at most once a minute, that no file can be opened; the event loop does not report this when accepting fails."""

    def __init__(self) -> None:
        self._said_s = -_WARNING_INTERVAL_S

    def check(self) -> None:
        """Try to open a file and log a failure."""
        try:
            os.close(os.open(os.devnull, os.O_RDONLY))
        except OSError as error:
            if time.monotonic() - self._said_s >= _WARNING_INTERVAL_S:
                self._said_s = time.monotonic()
                _log.error("cannot open files or connections: %s", error)
