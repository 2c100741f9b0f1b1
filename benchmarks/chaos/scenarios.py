"""Failure scenarios: kills at named points, at random times and of one of two workers; stops of PostgreSQL."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import httpx

from autosbp.service.jobs._fault_injection import POINTS
from benchmarks.chaos._fleet import JobRecord, Process

KINDS = ("calibrate", "search", "trial")
_OPTIONS = {"global_batch": 8, "time_limit_s": 5.0}
_ATTEMPTS = 1000  # unlimited in practice: a job may be interrupted any number of times
_MOST_WAITING = 5
MAX_CRASH_WAIT_S = 300.0
"""Maximum seconds until a process reaches its crash point."""
Found = dict[str, Any]


class Database(Protocol):
    """A PostgreSQL server."""

    def database(self) -> str:
        """URL of a new, empty database."""

    def stop(self) -> None:
        """Stop it abruptly, as a crash would."""

    def start(self) -> None:
        """Start it again."""


class Bodies:
    """Request bodies for jobs of each kind, for a model, a cluster and a strategy that are stored first.

    If ``measured``, searches use a calibration, so that trials correct it.
    """

    def __init__(self, folder: Path, database_url: str | None, *, measured: bool = False) -> None:
        process = Process(folder, "real", database_url=database_url)
        if not process.wait_ready():
            raise RuntimeError("".join(process.log))
        try:
            with httpx.Client(base_url=process.url, timeout=60) as client:
                self._model = client.post("/v1/models", json={"zoo": "mlp-small"}).json()["id"]
                self._cluster = client.post("/v1/clusters", json={"preset": "local:2"}).json()["id"]
                self._costs: dict[str, str] = {}
                if measured:
                    path, body = self.of("calibrate")
                    calibration = _done(client, path, {**body, "point_s": 0.02})["calibration_id"]
                    self._costs = {"calibration_id": calibration}
                self._strategy = _done(client, *self.of("search"))["strategy_id"]
        finally:
            process.end()

    def of(self, kind: str) -> tuple[str, dict[str, Any]]:
        """Path and body of a request."""
        if kind == "search":
            asked = {"model_id": self._model, "cluster_id": self._cluster, "options": _OPTIONS}
            return "/v1/searches", {**asked, **self._costs}
        if kind == "trial":
            return "/v1/trials", {"strategy_id": self._strategy}
        return "/v1/calibrations:measure", {"cluster_id": self._cluster}


def _done(client: httpx.Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Wait for a job and return its result."""
    job = client.post(path, json=body).json()
    while (found := client.get(f"/v1/jobs/{job['id']}").json())["state"] not in ("succeeded", "failed"):
        time.sleep(0.1)
    result: dict[str, Any] = found["result"]
    return result


def crash_points(folder: Path, points: Sequence[tuple[str, str]]) -> Found:
    """Die at each ``(kind, point)`` with a job of every kind present; each restart also has the jobs of earlier processes."""
    bodies, account = Bodies(folder, None), JobRecord(folder / "runs")
    reached = 0
    for kind, point in points:
        process = Process(folder, "serve", testing=1, crash_at=f"{kind}:{point}", max_attempts=_ATTEMPTS)
        if process.wait_ready():
            for each in sorted(KINDS, key=lambda name: name != kind):
                if each == kind or account.num_waiting(process.url) < _MOST_WAITING:
                    account.post(process.url, each, *bodies.of(each))
        reached += process.wait(MAX_CRASH_WAIT_S)
        process.end()
    states, _ = _settled(folder, account)
    return {**account.summary(states, reached), "points": len(points), "failures": unsuccessful_jobs(states)}


def every_point() -> list[tuple[str, str]]:
    """Every kind with every named point."""
    return [(kind, point) for point in POINTS for kind in KINDS]


def some_points() -> list[tuple[str, str]]:
    """Every named point once, alternating between kinds."""
    return [(KINDS[number % len(KINDS)], point) for number, point in enumerate(POINTS)]


def random_kills(folder: Path, kills: int, seed: int) -> Found:
    """Kill the service at random times while jobs are posted."""
    bodies, account, dice = Bodies(folder, None), JobRecord(folder / "runs"), random.Random(seed)
    for _ in range(kills):
        process = Process(folder, "serve", max_attempts=_ATTEMPTS)
        if process.wait_ready():
            _post_for(dice.uniform(0.0, 5.0), process.url, account, bodies, dice)
        process.end()
    states, _ = _settled(folder, account)
    return {**account.summary(states, kills), "failures": unsuccessful_jobs(states)}


def worker_kills(folder: Path, server: Database, kills: int, seed: int) -> Found:
    """Kill one of two workers on PostgreSQL at random times; another process accepts the jobs."""
    return _on_postgresql(folder, server, kills, seed, _kill_a_worker)


def worker_crash_points(folder: Path, server: Database, points: Sequence[tuple[str, str]]) -> Found:
    """Let a worker on PostgreSQL die at each ``(kind, point)``; the next worker continues its jobs.

    Another process, which only serves, accepts the jobs.
    """
    url = server.database()
    bodies, account, reached = Bodies(folder, url), JobRecord(folder / "runs"), 0

    def start(**dying: object) -> Process:
        return Process(folder, "work", database_url=url, max_attempts=_ATTEMPTS, **dying)

    api = Process(folder, "serve", database_url=url, worker=0)
    processes = [api]
    try:
        if not api.wait_ready():
            raise RuntimeError("the service does not start: " + "".join(api.log))
        for kind, point in points:
            processes.append(worker := start(testing=1, crash_at=f"{kind}:{point}"))
            if worker.wait_ready():
                account.post(api.url, kind, *bodies.of(kind))
            reached += worker.wait(MAX_CRASH_WAIT_S)
            worker.end()
        processes.append(start())
        states = account.settle(api.url)
        return {**account.summary(states, reached), "points": len(points), "failures": unsuccessful_jobs(states)}
    finally:
        for process in processes:
            process.end()


def database_stops(folder: Path, server: Database, stops: int, seed: int) -> Found:
    """Stop PostgreSQL abruptly while two workers are busy."""

    def stop(_workers: list[Process], _start: Callable[[], Process], dice: random.Random) -> None:
        server.stop()
        time.sleep(dice.uniform(0.0, 2.0))
        server.start()

    return _on_postgresql(folder, server, stops, seed, stop)


def _kill_a_worker(workers: list[Process], start: Callable[[], Process], dice: random.Random) -> None:
    victim = workers.pop(dice.randrange(len(workers)))
    victim.end()
    workers.append(start())


def _on_postgresql(
    folder: Path,
    server: Database,
    times: int,
    seed: int,
    strike: Callable[[list[Process], Callable[[], Process], random.Random], None],
) -> Found:
    url = server.database()
    bodies, account, dice = Bodies(folder, url), JobRecord(folder / "runs"), random.Random(seed)

    def start() -> Process:
        return Process(folder, "work", database_url=url, max_attempts=_ATTEMPTS)

    api = Process(folder, "serve", database_url=url, worker=0)
    workers = [start(), start()]
    try:
        if not (api.wait_ready() and all(worker.wait_ready() for worker in workers)):
            raise RuntimeError("the service does not start: " + "".join(api.log + workers[0].log))
        for _ in range(times):
            _post_for(dice.uniform(0.5, 4.0), api.url, account, bodies, dice)
            strike(workers, start, dice)
        states = account.settle(api.url)
        return {**account.summary(states, times), "failures": unsuccessful_jobs(states)}
    finally:
        for process in (api, *workers):
            process.end()


def _post_for(seconds: float, url: str, account: JobRecord, bodies: Bodies, dice: random.Random) -> None:
    """Post jobs of all kinds, but only while few are queued, so that queued jobs do not count as stuck."""
    until_s = time.monotonic() + seconds
    while (left_s := until_s - time.monotonic()) > 0:
        kind = dice.choice(KINDS)
        if account.num_waiting(url) < _MOST_WAITING:
            account.post(url, kind, *bodies.of(kind))
        time.sleep(min(left_s, dice.uniform(0.1, 0.6)))


def _settled(folder: Path, account: JobRecord) -> tuple[dict[str, str], float]:
    with _running(folder) as process:
        begun_s = time.monotonic()
        return account.settle(process.url), time.monotonic() - begun_s


@contextmanager
def _running(folder: Path) -> Iterator[Process]:
    process = Process(folder, "serve", max_attempts=_ATTEMPTS)
    try:
        if not process.wait_ready():
            raise RuntimeError("".join(process.log))
        yield process
    finally:
        process.end()


def unsuccessful_jobs(states: dict[str, str]) -> dict[str, str]:
    """Jobs that did not succeed."""
    return {job: state for job, state in states.items() if state != "succeeded"}
