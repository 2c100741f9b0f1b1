"""What is done to the service: kills at named points, at random moments, of one worker of two; stops of PostgreSQL."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import httpx

from benchmarks.chaos._fleet import Account, Process
from service.jobs._crash import POINTS

KINDS = ("calibrate", "search", "trial")
_OPTIONS = {"global_batch": 8, "time_limit_s": 5.0}
_ATTEMPTS = 1000  # a job may be unlucky as often as it likes
_MOST_WAITING = 5
REACH_S = 300.0
"""Seconds in which a process comes to where it is to die."""
Found = dict[str, Any]


class Database(Protocol):
    """A PostgreSQL server."""

    def database(self) -> str:
        """The URL of a new, empty database."""

    def stop(self) -> None:
        """Stop it as a crash would."""

    def start(self) -> None:
        """Start it again."""


class Bodies:
    """Requests for jobs of each kind, about a model, a cluster and a strategy that are stored first; if ``measured``, with a
    calibration, so that trials teach it."""

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
        """Path and body."""
        if kind == "search":
            asked = {"model_id": self._model, "cluster_id": self._cluster, "options": _OPTIONS}
            return "/v1/searches", {**asked, **self._costs}
        if kind == "trial":
            return "/v1/trials", {"strategy_id": self._strategy}
        return "/v1/calibrations", {"cluster_id": self._cluster}


def _done(client: httpx.Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The result of a job."""
    job = client.post(path, json=body).json()
    while (found := client.get(f"/v1/jobs/{job['id']}").json())["state"] not in ("succeeded", "failed"):
        time.sleep(0.1)
    result: dict[str, Any] = found["result"]
    return result


def crash_points(folder: Path, points: Sequence[tuple[str, str]]) -> Found:
    """Die at each ``(kind, point)`` in turn, with a job of every kind at work; each start has the last one's jobs too."""
    bodies, account = Bodies(folder, None), Account(folder / "runs")
    reached = 0
    for kind, point in points:
        process = Process(folder, "serve", testing=1, crash_at=f"{kind}:{point}", max_attempts=_ATTEMPTS)
        if process.wait_ready():
            for each in sorted(KINDS, key=lambda name: name != kind):
                if each == kind or account.num_waiting(process.url) < _MOST_WAITING:
                    account.post(process.url, each, *bodies.of(each))
        reached += process.wait(REACH_S)
        process.end()
    states, _ = _settled(folder, account)
    return {**account.summary(states, reached), "points": len(points), "failures": bad(states)}


def every_point() -> list[tuple[str, str]]:
    """Every kind with every named point."""
    return [(kind, point) for point in POINTS for kind in KINDS]


def some_points() -> list[tuple[str, str]]:
    """Every named point once, the kinds by turns."""
    return [(KINDS[number % len(KINDS)], point) for number, point in enumerate(POINTS)]


def random_kills(folder: Path, kills: int, seed: int) -> Found:
    """Kill the service at random moments while jobs are posted."""
    bodies, account, dice = Bodies(folder, None), Account(folder / "runs"), random.Random(seed)
    for _ in range(kills):
        process = Process(folder, "serve", max_attempts=_ATTEMPTS)
        if process.wait_ready():
            _post_for(dice.uniform(0.0, 5.0), process.url, account, bodies, dice)
        process.end()
    states, _ = _settled(folder, account)
    return {**account.summary(states, kills), "failures": bad(states)}


def worker_kills(folder: Path, server: Database, kills: int, seed: int) -> Found:
    """Kill one of two workers on PostgreSQL at random moments; a process that only serves takes the jobs."""
    return _on_postgresql(folder, server, kills, seed, _kill_a_worker)


def worker_crash_points(folder: Path, server: Database, points: Sequence[tuple[str, str]]) -> Found:
    """Have a worker on PostgreSQL die at each ``(kind, point)`` in turn; the next one has its jobs, too. A process that only
    serves takes them."""
    url = server.database()
    bodies, account, reached = Bodies(folder, url), Account(folder / "runs"), 0

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
            reached += worker.wait(REACH_S)
            worker.end()
        processes.append(start())
        states = account.settle(api.url)
        return {**account.summary(states, reached), "points": len(points), "failures": bad(states)}
    finally:
        for process in processes:
            process.end()


def database_stops(folder: Path, server: Database, stops: int, seed: int) -> Found:
    """Stop PostgreSQL at once, as a crash would, while two workers work."""

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
    bodies, account, dice = Bodies(folder, url), Account(folder / "runs"), random.Random(seed)

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
        return {**account.summary(states, times), "failures": bad(states)}
    finally:
        for process in (api, *workers):
            process.end()


def _post_for(seconds: float, url: str, account: Account, bodies: Bodies, dice: random.Random) -> None:
    """Post jobs of all kinds, as many as are worked off: what waits for its turn is not stuck."""
    until_s = time.monotonic() + seconds
    while (left_s := until_s - time.monotonic()) > 0:
        kind = dice.choice(KINDS)
        if account.num_waiting(url) < _MOST_WAITING:
            account.post(url, kind, *bodies.of(kind))
        time.sleep(min(left_s, dice.uniform(0.1, 0.6)))


def _settled(folder: Path, account: Account) -> tuple[dict[str, str], float]:
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


def bad(states: dict[str, str]) -> dict[str, str]:
    """Jobs that did not succeed."""
    return {job: state for job, state in states.items() if state != "succeeded"}
