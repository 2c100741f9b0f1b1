"""The service under load: ``python -m benchmarks.service [--processes N] [--database URL] [--seconds S] [OPTIONS]``.

Other options: ``--strategies N``, ``--check``, ``--json``, ``-o FILE``. The service runs with API keys, audit log and
access log as in production; this process sends requests from the same cores. The load is 200 reads per second for each
process of the service and 20 posts per second in total, while 100 streams follow a job, on a database with 100,000
strategies. Before that, requests are sent one after another: a page of the list, and a search that is already answered.
One process serves and works on SQLite; several processes need PostgreSQL and have an additional worker process.
``--database postgresql`` starts a server with its default durability (needs the repository and its development extra).

With ``--check`` it exits with 1 if a bound is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import uvloop

from autosbp.service import gc_freeze
from autosbp.service.jobs._processes import descendants
from benchmarks.service._http import Client
from benchmarks.service._load import Series, follow_job, one_by_one, requests_of, send_at_rate
from benchmarks.service._store import Served, Stored, are_ready, cpu_s, fill, run_service

READS_PER_S, POSTS_PER_S, STREAMS = 200, 20, 100
BOUNDS_MS = {"list": 100.0, "cached search": 20.0, "reads": 100.0, "posts": 250.0, "events": 1000.0}
_WARM_UP_S = 2.0
_ONE_BY_ONE = 300
_OWN = "postgresql"


def main() -> int:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="of load; 600 for the long form")
    parser.add_argument("--strategies", type=int, default=100_000, help="stored before")
    parser.add_argument("--processes", type=int, default=1, help="of the service; more than one need PostgreSQL")
    parser.add_argument("--database", help=f"SQLAlchemy URL of an empty database, or {_OWN}; by default a SQLite file")
    parser.add_argument("--check", action="store_true", help="exit with 1 where a bound is missed")
    parser.add_argument("--json", action="store_true", help="end in one JSON line")
    parser.add_argument(
        "-o", "--output", type=Path, help="put the result into a document, beside those of other databases"
    )
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # also stop the service and the database
    with tempfile.TemporaryDirectory(prefix="autosbp-load-") as folder, _database(arguments.database) as (url, server):
        found = run(Path(folder), url, arguments.strategies, arguments.seconds, arguments.processes, server=server)
    _show(found)
    if arguments.output is not None:
        _keep(arguments.output, found)
    if arguments.json:
        print(json.dumps(found))
    return 1 if arguments.check and not found["passed"] else 0


def run(
    folder: Path,
    database_url: str | None,
    num_strategies: int,
    seconds: float,
    processes: int = 1,
    share: float = 1.0,
    server: int | None = None,
) -> dict[str, Any]:
    """Run the load and return the document that ``--json`` prints.

    Args:
        share: fraction of the full load.
        server: process id of the database, if known.
    """
    with run_service(folder, database_url, processes) as service:
        begun_s = time.perf_counter()
        stored = fill(service, num_strategies)
        filled_s = time.perf_counter() - begun_s
        series, used = uvloop.run(_measure(service, stored, seconds, processes, share, server))
        ready = are_ready(service.urls)
    results = {name: one.to_dict(BOUNDS_MS[name]) for name, one in series.items()}
    passed = ready and all(one["errors"] == 0 and one["p99_ms"] <= one["bound_p99_ms"] for one in results.values())
    return {
        "command": " ".join(["python -m benchmarks.service", *sys.argv[1:]]),
        "machine": f"{os.cpu_count()} cores, {platform.system()} {platform.release()}, Python {platform.python_version()}",
        "database": "sqlite" if database_url is None else database_url.partition(":")[0],
        "processes": processes,
        "strategies": num_strategies,
        "fill_s": round(filled_s, 1),
        "seconds": seconds,
        "reads_per_s": share * READS_PER_S * processes,
        "posts_per_s": share * POSTS_PER_S,
        "streams": round(share * STREAMS),
        "ready_after": ready,
        **used,
        "results": results,
        "passed": passed,
    }


async def _measure(
    service: Served, stored: Stored, seconds: float, processes: int, share: float, server: int | None
) -> tuple[dict[str, Series], dict[str, float | None]]:
    places = [urlsplit(url) for url in service.urls]
    headers = {"authorization": f"Bearer {service.key}"}
    clients = [Client(str(place.hostname), int(place.port or 80), headers) for place in places]
    reads, posts = requests_of(clients, stored)
    await send_at_rate((*reads, *posts), 50.0, share * _WARM_UP_S)
    gc_freeze.freeze_all()  # a collection in this process would look like a stall of the service
    count = round(share * _ONE_BY_ONE)
    alone = {"list": await one_by_one(reads[0], count), "cached search": await one_by_one(posts[1], count)}
    watched: dict[str, Callable[[], float]] = {
        "service_cores": lambda: cpu_s(*service.pids),
        "client_cores": time.process_time,
    }
    if server is not None:
        watched["database_cores"] = lambda: cpu_s(server, *descendants(server))
    used, begun_s = {name: each() for name, each in watched.items()}, time.perf_counter()
    read, post, events = await asyncio.gather(
        send_at_rate(reads, share * READS_PER_S * processes, seconds),
        send_at_rate(posts, share * POSTS_PER_S, seconds),
        follow_job(clients, stored, service.database, round(share * STREAMS), seconds),
    )
    taken_s = time.perf_counter() - begun_s
    cores: dict[str, float | None] = {name: round((each() - used[name]) / taken_s, 2) for name, each in watched.items()}
    for client in clients:
        await client.close()
    cores["load_average"] = round(os.getloadavg()[0], 2)
    return {**alone, "reads": read, "posts": post, "events": events}, cores


@contextmanager
def _database(asked: str | None) -> Iterator[tuple[str | None, int | None]]:
    """The database URL, and the process id of a server started for it."""
    if asked != _OWN:
        yield asked, None
        return
    from tests.service.postgres import Postgres, programs

    with Postgres(programs(), durable=True) as server:
        yield server.database(), server.pid


def _keep(path: Path, found: dict[str, Any]) -> None:
    document = json.loads(path.read_text()) if path.exists() else {}
    document[f"{found['database']}, {found['processes']} process" + ("es" if found["processes"] > 1 else "")] = found
    path.write_text(json.dumps(document, indent=1) + "\n")


def _show(found: dict[str, Any]) -> None:
    print("{strategies} strategies on {database}, {processes} process(es), {seconds:g} s of load:".format(**found))
    print("{reads_per_s:g} reads and {posts_per_s:g} posts a second, {streams} streams".format(**found))
    print(f"{'':16}{'requests':>10}{'p50 ms':>10}{'p90 ms':>10}{'p99 ms':>10}{'max ms':>10}{'bound':>8}{'errors':>8}")
    for name, one in found["results"].items():
        numbers = "".join(f"{one[column]:>10}" for column in ("requests", "p50_ms", "p90_ms", "p99_ms", "max_ms"))
        print(f"{name:16}{numbers}{one['bound_p99_ms']:>8g}{one['errors']:>8}")
        for error in one["first_errors"]:
            print(f"  {error}")
    used = ", ".join(f"{name.removesuffix('_cores')} {found[name]}" for name in found if name.endswith("_cores"))
    print(f"cores used: {used}; load average {found['load_average']}")
    print("every bound is met" if found["passed"] else "a bound is missed")


if __name__ == "__main__":
    sys.exit(main())
