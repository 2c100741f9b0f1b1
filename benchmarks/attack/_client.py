"""Clients that follow no rules: any number of connections, from several addresses, sending any bytes at any speed."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from benchmarks.attack._target import Target

CONNECTIONS_PER_ADDRESS = 200
"""Connections per source address; the loopback interface has millions of addresses."""
_BLOCK = b" " * 2**16


@dataclass(slots=True)
class Answers:
    """Counts of responses by status; ``refused`` counts 503 with Retry-After, a legitimate refusal."""

    statuses: Counter[int] = field(default_factory=Counter)
    refused: int = 0
    cut_off: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def errors(self) -> int:
        """Number of 5xx responses that are not refusals."""
        return sum(count for status, count in self.statuses.items() if status >= 500) - self.refused

    def add(self, head: bytes) -> int:
        """Count a response, or its absence."""
        if not head.startswith(b"HTTP/1.1 "):
            self.cut_off += 1
            return 0
        status = int(head[9:12])
        self.statuses[status] += 1
        self.refused += status == 503 and b"retry-after:" in head.lower()
        return status


def head(target: Target, method: str, path: str, key: str = "", **headers: object) -> bytes:
    """Bytes of a request head."""
    host, port = target.place
    given = {"Host": f"{host}:{port}", **({"Authorization": f"Bearer {key}"} if key else {})}
    given |= {name.replace("_", "-"): str(value) for name, value in headers.items()}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in given.items()), "", ""]
    return "\r\n".join(lines).encode()


async def send(
    target: Target,
    answers: Answers,
    number: int,
    parts: Iterable[bytes] | AsyncIterator[bytes],
    patience_s: float = 20.0,
) -> bytes:
    """Send parts on a new connection, regardless of any response meanwhile; returns the response."""
    address, said = f"127.0.1.{1 + number // CONNECTIONS_PER_ADDRESS}", bytearray()
    try:
        async with asyncio.timeout(patience_s):
            reader, writer = await asyncio.open_connection(*target.place, local_addr=(address, 0), limit=2**24)
            listening = asyncio.create_task(_answer(reader, said))
            try:
                await _talk(writer, parts)
                await listening
            finally:
                listening.cancel()
                writer.transport.abort()
    except (OSError, RuntimeError, TimeoutError, asyncio.IncompleteReadError):  # RuntimeError: uvloop, closed
        pass
    answers.add(bytes(said))
    return bytes(said)


async def _talk(writer: asyncio.StreamWriter, parts: Iterable[bytes] | AsyncIterator[bytes]) -> None:
    try:
        if isinstance(parts, AsyncIterator):
            async for part in parts:
                writer.write(part)
                await writer.drain()
        else:
            for part in parts:
                writer.write(part)
                await writer.drain()
    except (OSError, RuntimeError):  # the response may have arrived nevertheless
        pass


async def _answer(reader: asyncio.StreamReader, said: bytearray) -> None:
    said += await reader.readuntil(b"\r\n\r\n")
    lines = bytes(said).lower().split(b"\r\n")
    length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)
    said += await reader.readexactly(length)


def blocks(start: bytes, num_bytes: int) -> Iterable[bytes]:
    """A head, then ``num_bytes`` spaces."""
    yield start
    for _ in range(0, num_bytes, len(_BLOCK)):
        yield _BLOCK


async def trickle(start: bytes, every_s: float, seconds: float) -> AsyncIterator[bytes]:
    """A head, then one byte every ``every_s`` seconds."""
    yield start
    for _ in range(round(seconds / every_s)):
        await asyncio.sleep(every_s)
        yield b" "


async def ask(
    target: Target, answers: Answers, number: int, method: str, path: str, key: str, body: object = None
) -> bytes:
    """Send a well-formed request with a JSON body."""
    content = b"" if body is None else json.dumps(body).encode()
    more = {"Content_Type": "application/json", "Content_Length": len(content)} if content else {}
    return await send(target, answers, number, [head(target, method, path, key, **more) + content], 120.0)


async def run_concurrently(count: int, one: Callable[[int], Awaitable[object]]) -> None:
    """Run ``count`` instances concurrently."""
    await asyncio.gather(*(one(number) for number in range(count)))


async def repeat_concurrently(count: int, seconds: float, one: Callable[[int], Awaitable[object]]) -> None:
    """Run ``count`` instances concurrently, each repeated until ``seconds`` have passed."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + seconds

    async def repeat(number: int) -> None:
        while loop.time() < end_s:
            await one(number)

    await run_concurrently(count, repeat)
