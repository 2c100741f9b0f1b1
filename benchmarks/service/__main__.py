"""The service under load: ``python -m benchmarks.service [--seconds S] [--strategies N] [--database URL] [--check] [--json]``.

One process serves, with API keys, audit log and access log as in production; this one asks, on the same cores. 200 reads and
20 posts a second for so many seconds while 100 clients follow a job, on a database with 100,000 strategies. Before that,
one request after the other: a page of the list, and a search that has an answer. With
``--check`` it exits with 1 where a bound is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.service._http import Client
from benchmarks.service._load import Series, followed, one_by_one, paced, requests_of
from benchmarks.service._store import Stored, cpu_s, fill, is_ready, served
from service.db import Database

READS_PER_S, POSTS_PER_S, STREAMS = 200, 20, 100
BOUNDS_MS = {"list": 100.0, "cached search": 20.0, "reads": 100.0, "posts": 250.0, "events": 1000.0}
_WARM_UP_S = 2.0
_ONE_BY_ONE = 300


def main() -> int:
    """Run it and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="of load; 600 for the long form")
    parser.add_argument("--strategies", type=int, default=100_000, help="stored before")
    parser.add_argument("--database", help="SQLAlchemy URL of an empty database; a SQLite file by default")
    parser.add_argument("--check", action="store_true", help="exit with 1 where a bound is missed")
    parser.add_argument("--json", action="store_true", help="end in one JSON line")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="autosbp-load-") as folder:
        found = run(Path(folder), arguments.database, arguments.strategies, arguments.seconds)
    _show(found)
    if arguments.json:
        print(json.dumps(found))
    return 1 if arguments.check and not found["passed"] else 0


def run(
    folder: Path, database_url: str | None, num_strategies: int, seconds: float, share: float = 1.0
) -> dict[str, Any]:
    """The document that ``--json`` prints; ``share`` of the whole load."""
    with served(folder, database_url) as (url, key, database, pid):
        begun_s = time.perf_counter()
        stored = fill(url, key, database, num_strategies)
        filled_s = time.perf_counter() - begun_s
        address = urlsplit(url)
        client = Client(str(address.hostname), int(address.port or 80), {"authorization": f"Bearer {key}"})
        series, used = asyncio.run(_measure(client, stored, database, seconds, share, pid))
        ready = is_ready(url)
    results = {name: one.to_dict(BOUNDS_MS[name]) for name, one in series.items()}
    passed = ready and all(one["errors"] == 0 and one["p99_ms"] <= one["bound_p99_ms"] for one in results.values())
    return {
        "database": "sqlite" if database_url is None else database_url.partition(":")[0],
        "strategies": num_strategies,
        "fill_s": round(filled_s, 1),
        "seconds": seconds,
        "reads_per_s": share * READS_PER_S,
        "posts_per_s": share * POSTS_PER_S,
        "streams": round(share * STREAMS),
        "ready_after": ready,
        **used,
        "results": results,
        "passed": passed,
    }


async def _measure(
    client: Client, stored: Stored, database: Database, seconds: float, share: float, pid: int
) -> tuple[dict[str, Series], dict[str, float]]:
    reads, posts = requests_of(client, stored)
    await paced((*reads, *posts), 50.0, share * _WARM_UP_S)
    count = round(share * _ONE_BY_ONE)
    alone = {"list": await one_by_one(reads[0], count), "cached search": await one_by_one(posts[1], count)}
    used, begun_s = (cpu_s(pid), time.process_time()), time.perf_counter()
    read, post, events = await asyncio.gather(
        paced(reads, share * READS_PER_S, seconds),
        paced(posts, share * POSTS_PER_S, seconds),
        followed(client, stored, database, round(share * STREAMS), seconds),
    )
    await client.close()
    taken_s = time.perf_counter() - begun_s
    cores = {
        "service_cores": round((cpu_s(pid) - used[0]) / taken_s, 2),
        "client_cores": round((time.process_time() - used[1]) / taken_s, 2),
        "load_average": round(os.getloadavg()[0], 2),
    }
    return {**alone, "reads": read, "posts": post, "events": events}, cores


def _show(found: dict[str, Any]) -> None:
    print(f"{found['strategies']} strategies on {found['database']}, {found['seconds']:g} s of load")
    print(f"{'':16}{'requests':>10}{'p50 ms':>10}{'p90 ms':>10}{'p99 ms':>10}{'max ms':>10}{'bound':>8}{'errors':>8}")
    for name, one in found["results"].items():
        numbers = "".join(f"{one[column]:>10}" for column in ("requests", "p50_ms", "p90_ms", "p99_ms", "max_ms"))
        print(f"{name:16}{numbers}{one['bound_p99_ms']:>8g}{one['errors']:>8}")
        for error in one["first_errors"]:
            print(f"  {error}")
    print(
        "cores used: service {service_cores}, this client {client_cores}; load average {load_average}".format(**found)
    )
    print("every bound is met" if found["passed"] else "a bound is missed")


if __name__ == "__main__":
    sys.exit(main())
