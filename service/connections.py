"""Connections have deadlines and a limit, so that clients that send nothing keep nobody out.

A request's head has to come within ``HEAD_S``, its body within ``BODY_S`` and as fast as ``LEAST_BYTES_PER_S``, and an answer
has to be read: who takes none of it for ``READ_S`` is cut off. Streams of events may be as long as they like. Where the
limit of connections is reached, the one that has asked for nothing for longest makes room; where all are being answered, a new
one is told 503.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import time
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_log = logging.getLogger("service.connections")
HEAD_S, BODY_S, READ_S = 20.0, 20.0, 60.0
LEAST_BYTES_PER_S = 1000
_RESERVED, _SHARE = 128, 4  # descriptors that connections must leave to the rest, and their share of all, as 1 / _SHARE
_FEWEST = 16
_SAY_AGAIN_S = 60.0
_LATE = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_FULL = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 5\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class Connection(HttpToolsProtocol):
    """uvicorn's, which has no deadline but that of an idle connection. ``limit`` is of the class that ``limited`` makes."""

    limit: ClassVar[int] = 0
    _said_s: ClassVar[float] = -_SAY_AGAIN_S

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._since_s: float | None = None  # when what is waited for began
        self._received = 0  # bytes of the body since then
        self._in_body = False
        self._unread_s: float | None = None
        self._idle_s = self.loop.time()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Let it in, if need be in the place of one that asks for nothing."""
        super().connection_made(transport)
        self._expect(in_body=False)
        if len(self.connections) > self.limit and not self._found_room():
            transport.write(_FULL)
            transport.close()

    def data_received(self, data: bytes) -> None:
        """Bytes of a head, or of a body."""
        if self._since_s is None and self._answered():
            self._expect(
                in_body=False
            )  # what no request begins with stops uvicorn's own clock of idle connections, too
        super().data_received(data)

    def on_message_begin(self) -> None:
        """The first byte of a head."""
        super().on_message_begin()
        self._expect(in_body=False)

    def on_headers_complete(self) -> None:
        """A whole head."""
        super().on_headers_complete()
        self._expect(in_body=True)

    def on_body(self, body: bytes) -> None:
        """A part of a body."""
        super().on_body(body)
        self._received += len(body)

    def on_message_complete(self) -> None:
        """A whole request: from now on the client waits for us."""
        super().on_message_complete()
        self._since_s = None

    def on_response_complete(self) -> None:
        """From now on the client may be idle for a while."""
        super().on_response_complete()
        self._idle_s = self.loop.time()

    def pause_writing(self) -> None:
        """The client does not read as fast as it is sent to."""
        super().pause_writing()
        self._unread_s = self.loop.time()

    def resume_writing(self) -> None:
        """It does again."""
        super().resume_writing()
        self._unread_s = None

    def end_if_late(self, now_s: float) -> None:
        """Close the connection if it is past its deadline; called about once a second."""
        if self._unread_s is not None and now_s - self._unread_s > READ_S:
            self.transport.abort()
        elif self.transport.is_closing():
            return
        elif self._since_s is not None and not self.flow.read_paused:
            patience_s = BODY_S + self._received / LEAST_BYTES_PER_S if self._in_body else HEAD_S
            if now_s - self._since_s > patience_s:
                self._end()

    def _expect(self, *, in_body: bool) -> None:
        self._since_s, self._received, self._in_body = self.loop.time(), 0, in_body

    def _answered(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _end(self) -> None:
        if self._answered() or not self.cycle.response_started:
            self.transport.write(_LATE)
        self.transport.close()

    def _found_room(self) -> bool:
        """End the connection that has asked for nothing for longest."""
        others = [each for each in self.connections if isinstance(each, Connection) and each is not self]
        idle = [each for each in others if each._waits() and not each.transport.is_closing()]
        self._say(f"{self.limit} connections are open, {len(idle)} of which ask for nothing")
        if not idle:
            return False
        min(idle, key=lambda each: each._idle_s if each._since_s is None else each._since_s)._end()
        return True

    def _waits(self) -> bool:
        """Whether it is the client's turn."""
        return self._since_s is not None or self._answered()

    @classmethod
    def _say(cls, words: str) -> None:
        if time.monotonic() - Connection._said_s >= _SAY_AGAIN_S:
            Connection._said_s = time.monotonic()
            _log.warning("%s: the longest idle ones make room for new ones", words)


def limited(most: int) -> type[Connection]:
    """The class of connections of which there are at most ``allowed(most)``."""
    return type("Connection", (Connection,), {"limit": allowed(most)})


def allowed(most: int) -> int:
    """``most``, or as many connections as descriptors allow."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(most, max(_FEWEST, soft - max(_RESERVED, soft // _SHARE)))


def raise_descriptors() -> None:
    """As many open files as the system lets this process have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class Descriptors:
    """Says once a minute that no file can be opened, which an event loop that accepts connections keeps to itself."""

    def __init__(self) -> None:
        self._said_s = -_SAY_AGAIN_S

    def check(self) -> None:
        """Try."""
        try:
            os.close(os.open(os.devnull, os.O_RDONLY))
        except OSError as error:
            if time.monotonic() - self._said_s >= _SAY_AGAIN_S:
                self._said_s = time.monotonic()
                _log.error("no file or connection can be opened: %s", error)
