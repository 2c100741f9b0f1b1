"""A minimal HTTP client with keep-alive for load tests, so that its own cost stays small."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Answer:
    """A response."""

    status: int
    headers: Mapping[str, str]
    body: bytes


_MOST_IDLE_S = 30.0
"""A connection idle for longer is not reused: the service may be about to close it."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """An idle connection, and when it was last used."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    at_s: float


@dataclass(slots=True)
class Client:
    """Connections to one service; each serves one request at a time, the most recently used first."""

    host: str
    port: int
    headers: Mapping[str, str]
    _idle: list[_Kept] = field(default_factory=list)

    async def send(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Send one request and return its response."""
        reader, writer = await self._connection()
        writer.write(self._request(method, path, body, headers or {}))
        status, found = await _head(reader)
        payload = await reader.readexactly(int(found.get("content-length", "0")))
        if found.get("connection") == "close":
            await _closed(writer)
        else:
            self._idle.append(_Kept(reader, writer, time.monotonic()))
        return Answer(status, found, payload)

    async def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            await _closed(self._idle.pop().writer)

    async def events(self, path: str) -> AsyncGenerator[str, None]:
        """Yield the data of each server-sent event."""
        reader, writer = await asyncio.open_connection(self.host, self.port)
        writer.write(self._request("GET", path, None, {}))
        status, _ = await _head(reader)
        if status != 200:
            raise ConnectionError(f"{path} was answered with {status}")
        try:
            while line := await reader.readline():
                if line.startswith(b"data: "):
                    yield line[6:].decode()
        finally:
            await _closed(writer)

    async def _connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        while self._idle and time.monotonic() - self._idle[0].at_s > _MOST_IDLE_S:
            await _closed(self._idle.pop(0).writer)
        if self._idle:
            kept = self._idle.pop()
            return kept.reader, kept.writer
        return await asyncio.open_connection(self.host, self.port)

    def _request(self, method: str, path: str, body: object, headers: Mapping[str, str]) -> bytes:
        payload = b"" if body is None else json.dumps(body).encode()
        given = {**self.headers, **headers, "host": f"{self.host}:{self.port}"}
        if payload:
            given |= {"content-type": "application/json", "content-length": str(len(payload))}
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in given.items()), "", ""]
        return "\r\n".join(lines).encode() + payload


async def _closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines[1:] if line)
    return int(lines[0].split()[1]), {name.lower(): value.strip() for name, _, value in pairs}
