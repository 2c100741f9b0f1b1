"""The load: requests at fixed times, regardless of response times, and clients that follow a job.

A latency counts from the time at which a request was due, so a service that stalls is charged for the requests that
waited.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from autosbp.service.db import Database
from benchmarks.service._http import Answer, Client
from benchmarks.service._store import Stored, copy_id, step

_STEP_S = 1.0
_LATEST_S = 10.0
_STRIDE = 7919  # reads strategies from all over the table
Request = Callable[[int], Coroutine[Any, Any, Answer]]


@dataclass(slots=True)
class Series:
    """Latencies and errors of one kind of request."""

    latencies_s: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def to_dict(self, bound_ms: float) -> dict[str, Any]:
        """Percentiles in ms, with a bound on the 99th."""
        found = {f"p{share}_ms": round(1e3 * percentile(self.latencies_s, share), 2) for share in (50, 90, 99)}
        return {
            "requests": len(self.latencies_s),
            **found,
            "max_ms": round(1e3 * max(self.latencies_s, default=math.nan), 2),
            "bound_p99_ms": bound_ms,
            "errors": len(self.errors),
            "first_errors": self.errors[:3],
        }


def percentile(values: Sequence[float], share: float) -> float:
    """Smallest value that at least ``share`` percent of the values do not exceed."""
    if not values:
        return math.nan
    return sorted(values)[max(0, math.ceil(share / 100 * len(values)) - 1)]


def requests_of(clients: Sequence[Client], stored: Stored) -> tuple[tuple[Request, ...], tuple[Request, ...]]:
    """The reads and the posts; a request is called with its number n, which also selects the client in turn."""

    def get(path: Callable[[int], str], tag: Callable[[int], str] | None = None) -> Request:
        def ask(number: int) -> Coroutine[Any, Any, Answer]:
            headers = {} if tag is None else {"if-none-match": tag(number)}
            return clients[number % len(clients)].send("GET", path(number), headers=headers)

        return ask

    async def cluster(number: int) -> Answer:
        key = {"idempotency-key": f"load-{time.time_ns()}"}
        body = {"preset": f"local:{2 + number % 4000}"}
        return await clients[number % len(clients)].send("POST", "/v1/clusters", body, key)

    async def search(number: int) -> Answer:
        return await clients[number % len(clients)].send("POST", "/v1/searches", stored.search)

    def strategy(number: int) -> str:
        return copy_id(number * _STRIDE % stored.num_strategies)

    reads = (
        get(lambda _: "/v1/strategies"),
        get(lambda _: f"/v1/strategies?model_id={stored.model_id}&limit=20"),
        get(lambda number: f"/v1/strategies/{strategy(number)}"),
        get(lambda number: f"/v1/strategies/{strategy(number)}", lambda number: f'"{strategy(number)}"'),
        get(lambda _: "/v1/jobs?limit=20"),
        get(lambda _: f"/v1/models/{stored.model_id}"),
    )
    return reads, (cluster, search)


async def send_at_rate(requests: Sequence[Request], per_s: float, seconds: float) -> Series:
    """Send requests in turn, ``per_s`` per second."""
    series, running = Series(), set[asyncio.Task[None]]()
    begun_s = time.perf_counter()
    for number in range(round(per_s * seconds)):
        due_s = begun_s + number / per_s
        if (wait_s := due_s - time.perf_counter()) > 0:
            await asyncio.sleep(wait_s)
        task = asyncio.create_task(_timed(requests[number % len(requests)], number, due_s, series))
        running.add(task)
        task.add_done_callback(running.discard)
    await asyncio.gather(*running)
    return series


async def one_by_one(request: Request, count: int) -> Series:
    """Send a request ``count`` times, each after the response to the previous one."""
    series = Series()
    for number in range(count):
        await _timed(request, number, time.perf_counter(), series)
    return series


async def _timed(request: Request, number: int, due_s: float, series: Series) -> None:
    try:
        answer = await request(number)
    except (OSError, asyncio.IncompleteReadError) as error:
        series.errors.append(f"{type(error).__name__}: {error}")
        return
    series.latencies_s.append(time.perf_counter() - due_s)
    if answer.status >= 400:
        series.errors.append(f"{answer.status}: {answer.body[:200].decode(errors='replace')}")


async def follow_job(
    clients: Sequence[Client], stored: Stored, database: Database, num_streams: int, seconds: float
) -> Series:
    """Delays of a job's events at ``num_streams`` streams; the job makes progress every second.

    A stream that misses the last event is an error.
    """
    series, seen, last = Series(), [""] * num_streams, ""

    async def follow(at: int) -> None:
        async with aclosing(clients[at % len(clients)].events(f"/v1/jobs/{stored.job_id}/events")) as events:
            async for text in events:
                seen[at] = json.loads(text)["message"]
                if seen[at] != "0":
                    series.latencies_s.append(time.time() - float(seen[at]))

    async def move() -> None:
        nonlocal last
        for _ in range(max(1, round(seconds / _STEP_S) - 2)):
            await asyncio.sleep(_STEP_S)
            last = repr(time.time())
            await asyncio.to_thread(step, database, last)

    streams = [asyncio.create_task(follow(at)) for at in range(num_streams)]
    await move()
    deadline_s = time.monotonic() + _LATEST_S
    while any(each != last for each in seen) and time.monotonic() < deadline_s:
        await asyncio.sleep(0.05)
    for at, task in enumerate(streams):
        if task.done():
            series.errors.append(f"a stream ended: {task.exception()}")
        elif seen[at] != last:
            series.errors.append(f"stream {at} saw {seen[at]}, not {last}")
        task.cancel()
    await asyncio.gather(*streams, return_exceptions=True)
    return series
