"""Storage failures, and what a real service answers during and after them.

A ``StorageFailure`` starts a service as a context manager, with one function that begins the failure and one that ends it, if
it can be ended. ``run_failure`` tests each in the same way: posts and reads before, during and after the failure; afterwards a
search must succeed, too.
"""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import Engine, create_engine, text

from autosbp.service.testing.disks import Disk, missing_programs
from tests.service import documents
from tests.service.postgres import Postgres, programs
from tests.service.server import Server

_ENOUGH, _MOST = 8, 1500
_PATIENCE_S = 60.0
_PROBLEMS = {503: "urn:autosbp:problem:storage-unavailable", 507: "urn:autosbp:problem:storage-full"}
Act = Callable[[], None]
_DISK_BYTES = {"full": 16 * 2**20, "failing": 64 * 2**20}


@dataclass(frozen=True, slots=True)
class FailingService:
    """A service and its failure; ``end`` is None if only another disk would help."""

    server: Server
    begin: Act
    end: Act | None


Start = Callable[[Path], AbstractContextManager[FailingService]]


@dataclass(frozen=True, slots=True)
class StorageFailure:
    """A kind of storage failure.

    Attributes:
        statuses: correct responses to requests that store something.
        reads: whether reads still work.
        ready: response status of /readyz.
        lacks: lists what this machine lacks to run it.
    """

    start: Start
    statuses: tuple[int, ...]
    reads: bool = True
    ready: str = "200"
    lacks: Callable[[], list[str]] = list


@dataclass(frozen=True, slots=True)
class Found:
    """Observed responses.

    Attributes:
        posts, reads: counts by status during the failure.
        ready: response of /readyz during the failure.
        odd: incorrect responses.
        can_end: whether the failure can be ended.
        recovered_s: seconds from its end to a post that the same process stores; None if there was none or it cannot
            end.
        searches: final states of a search accepted before, and of one after.
    """

    posts: Mapping[str, int]
    reads: Mapping[str, int]
    ready: str
    odd: list[str]
    can_end: bool
    recovered_s: float | None
    searches: list[str]
    seconds: float

    def bad(self, way: StorageFailure) -> bool:
        """Whether the outcome violates the expectations of ``way``."""
        reads_on = set(self.reads) == {"200"} if way.reads else not set(self.reads) - {"200", "503"}
        refused = any(self.posts.get(str(status)) for status in way.statuses)
        back = self.recovered_s is not None and self.searches == ["succeeded"] * 2
        return bool(self.odd) or not reads_on or not refused or self.ready != way.ready or (self.can_end and not back)

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


def run_failure(way: StorageFailure, folder: Path) -> Found:
    """Run one failure."""
    begun_s = time.monotonic()
    posts: Counter[str] = Counter()
    reads: Counter[str] = Counter()
    odd: list[str] = []
    with way.start(folder) as struck, httpx.Client(base_url=struck.server.url, timeout=60) as client:

        def post(number: int) -> httpx.Response:
            return client.post("/v1/models", json={**documents.graph(), "name": f"model-{number}"})

        if (first := post(0)).status_code != 201:
            raise RuntimeError(f"the service is not well: {first.text}")
        model = first.json()["id"]
        accepted = _search(client, model, 8)
        struck.begin()
        for number in range(1, _MOST):
            answer = post(number)
            posts[str(answer.status_code)] += 1
            if answer.status_code != 201 and not _is_right(answer, way.statuses):
                odd.append(f"{answer.status_code} {answer.text[:300]}")
            if answer.status_code != 201 or number % 50 == 0:
                for path in ("/v1/models", f"/v1/models/{model}"):
                    reads[str((found := client.get(path)).status_code)] += 1
                    if found.status_code >= 400 and not _is_right(found, (503,)):
                        odd.append(f"{found.status_code} {found.text[:300]}")
            if sum(posts.values()) - posts["201"] >= _ENOUGH:
                break
        ready = client.get("/readyz")
        told = (
            f"{ready.status_code} {'; '.join(each for each in ready.json()['checks'].values() if each != 'ok')}".strip()
        )
        if client.get("/healthz").status_code != 200:
            odd.append("/healthz does not answer")
        recovered_s, searches = None, []
        if struck.end is not None:
            struck.end()
            recovered_s = _recovered(client, lambda: post(_MOST).status_code, odd)
            if recovered_s is not None:
                searches = [documents.wait(client, each)["state"] for each in (accepted, _search(client, model, 16))]
    seconds = round(time.monotonic() - begun_s, 1)
    return Found(dict(+posts), dict(reads), told, odd, struck.end is not None, recovered_s, searches, seconds)


def _is_right(answer: httpx.Response, statuses: tuple[int, ...]) -> bool:
    known = _PROBLEMS.get(answer.status_code)
    if answer.status_code not in statuses or "retry-after" not in answer.headers:
        return False
    return answer.headers["content-type"] == "application/problem+json" and answer.json()["type"] == known


def _recovered(client: httpx.Client, post: Callable[[], int], odd: list[str]) -> float | None:
    """Seconds until a post is stored and the service is ready, in the same process."""
    begun_s = time.monotonic()
    while time.monotonic() - begun_s < _PATIENCE_S:
        status = post()
        if status not in (201, *_PROBLEMS):
            odd.append(f"{status} as it ended")
        if status == 201 and client.get("/readyz").status_code == 200:
            return round(time.monotonic() - begun_s, 2)
        time.sleep(0.05)
    return None


def _search(client: httpx.Client, model: str, batch: int) -> str:
    """Queue a search and return its job's id."""
    cluster = client.post("/v1/clusters", json={"preset": "local:2"}).json()["id"]
    options = {**documents.OPTIONS, "global_batch": batch}
    answer = client.post("/v1/searches", json={"model_id": model, "cluster_id": cluster, "options": options})
    return str(answer.json()["id"])


@contextmanager
def _sqlite_locked(folder: Path) -> Iterator[FailingService]:
    with Server(folder / "data", lock_timeout_s=0.2) as server:
        _ = server.url
        other = sqlite3.connect(folder / "data" / "autosbp.db", isolation_level=None)
        yield FailingService(server, lambda: _run(other, "BEGIN IMMEDIATE"), lambda: _run(other, "ROLLBACK"))
        other.close()


def _run(connection: sqlite3.Connection, statement: str) -> None:
    connection.execute(statement)


@contextmanager
def _sqlite_full(folder: Path) -> Iterator[FailingService]:
    with (
        Disk.in_memory(folder / "disk", _DISK_BYTES["full"]) as disk,
        Server(folder / "disk" / "data", within=disk.command_prefix, min_free_bytes=10**6) as server,
    ):
        yield FailingService(server, disk.fill, disk.free)


@contextmanager
def _sqlite_failing(folder: Path) -> Iterator[FailingService]:
    with (
        Disk.on_image(folder / "disk", folder / "image", _DISK_BYTES["failing"]) as disk,
        Server(folder / "disk" / "data", within=disk.command_prefix, min_free_bytes=10**6) as server,
    ):
        yield FailingService(server, disk.fail, None)


def _artifacts(begin: Callable[[Disk], None], end: Callable[[Disk], None], *, image: bool = False) -> Start:
    """Failure of a disk that holds only the artifacts."""

    @contextmanager
    def start(folder: Path) -> Iterator[FailingService]:
        place, size = folder / "disk", _DISK_BYTES["failing" if image else "full"]
        held = Disk.on_image(place, folder / "image", size) if image else Disk.in_memory(place, size)
        with held as disk, Server(folder / "data", within=disk.command_prefix, artifacts=place) as server:
            yield FailingService(server, lambda: begin(disk), lambda: end(disk))

    return start


@contextmanager
def _postgres_locked(folder: Path) -> Iterator[FailingService]:
    with _served(folder, lock_timeout_s=0.2) as (_, server, beside), beside.connect() as other:

        def lock() -> None:
            other.execute(text("BEGIN"))
            other.execute(text("LOCK TABLE models IN EXCLUSIVE MODE"))

        yield FailingService(server, lock, lambda: _tell(other, "ROLLBACK"))


def _tell(connection: Any, statement: str) -> None:
    connection.execute(text(statement))


@contextmanager
def _postgres_read_only(folder: Path) -> Iterator[FailingService]:
    with _served(folder) as (_, server, beside), beside.connect() as other:

        def alter(what: str, until: str) -> None:
            other.execute(text(f"ALTER SYSTEM {what}"))
            other.execute(text("SELECT pg_reload_conf()"))
            documents.wait_until(lambda: other.scalar(text("SHOW default_transaction_read_only")) == until)

        yield FailingService(
            server,
            lambda: alter("SET default_transaction_read_only = on", "on"),
            lambda: alter("RESET default_transaction_read_only", "off"),
        )


@contextmanager
def _postgres_stopped(folder: Path) -> Iterator[FailingService]:
    with _served(folder) as (postgres, server, _):
        yield FailingService(server, postgres.stop, postgres.start)


@contextmanager
def _postgres_full(folder: Path) -> Iterator[FailingService]:
    with _served(folder, "data") as (postgres, server, _):
        assert postgres.disk is not None
        yield FailingService(server, postgres.disk.fill, postgres.disk.free)


@contextmanager
def _postgres_log_full(folder: Path) -> Iterator[FailingService]:
    """PostgreSQL terminates itself, and the test restarts it once there is room."""
    with _served(folder, "wal") as (postgres, server, _):
        disk = postgres.disk
        assert disk is not None

        def end() -> None:
            disk.free()
            if not postgres.runs():
                postgres.start()

        yield FailingService(server, disk.fill, end)


@contextmanager
def _served(folder: Path, small: str | None = None, **settings: object) -> Iterator[tuple[Postgres, Server, Engine]]:
    with Postgres(programs(), small=small) as postgres:
        url = postgres.database()
        beside = create_engine(url.replace("postgresql:", "postgresql+psycopg:"), isolation_level="AUTOCOMMIT")
        with Server(folder / "data", database_url=url, **settings) as server:
            _ = server.url
            yield postgres, server, beside
        beside.dispose()


def _loop() -> list[str]:
    return missing_programs(loop=True)


_KEPT_FULL = "503 the disk of the artifacts folder is full"
_KEPT_CLOSED = "503 the artifacts folder is on a read-only disk"
_KEPT_ELSEWHERE = "503 the artifacts folder was replaced after the service started; put it back, or restart the service"
_AWAY, _FULL = "503 the database does not respond", "503 the disk is almost full"
FAILURES: Mapping[str, StorageFailure] = {
    "SQLite, locked": StorageFailure(_sqlite_locked, (503,)),
    "SQLite, disk full": StorageFailure(_sqlite_full, (507,), ready=_FULL, lacks=missing_programs),
    "SQLite, disk fails": StorageFailure(
        _sqlite_failing, (503,), ready="503 the data folder is on a read-only disk", lacks=_loop
    ),
    "artifacts, disk full": StorageFailure(
        _artifacts(Disk.fill, Disk.free), (507,), ready=_KEPT_FULL, lacks=missing_programs
    ),
    "artifacts, disk read-only": StorageFailure(
        _artifacts(Disk.close, Disk.set_writable), (503,), ready=_KEPT_CLOSED, lacks=missing_programs
    ),
    "artifacts, disk gone": StorageFailure(
        _artifacts(Disk.lose, Disk.remount, image=True), (503,), ready=_KEPT_ELSEWHERE, lacks=_loop
    ),
    "PostgreSQL, locked": StorageFailure(_postgres_locked, (503,)),
    "PostgreSQL, read-only": StorageFailure(_postgres_read_only, (503,)),
    "PostgreSQL, stopped": StorageFailure(_postgres_stopped, (503,), reads=False, ready=_AWAY),
    "PostgreSQL, disk of data full": StorageFailure(_postgres_full, (507,), lacks=missing_programs),
    "PostgreSQL, disk of its log full": StorageFailure(
        _postgres_log_full, (503, 507), reads=False, ready=_AWAY, lacks=missing_programs
    ),
}
