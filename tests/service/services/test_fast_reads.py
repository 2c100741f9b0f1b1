"""Reads and writes without the ORM: they see and do what sessions would, and no tenant's are another's."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Select, select, update
from sqlalchemy.exc import OperationalError
from starlette.testclient import TestClient

from autosbp.service import db
from autosbp.service.db import Database
from autosbp.service.models import ClusterRow, JobRow, ModelRow, now, table_of
from autosbp.service.problem_details import ProblemError
from autosbp.service.services._fast_reads import columns, read_page, read_row, require_row
from autosbp.service.services._list_page import ListPage
from autosbp.service.services._queries import find, page
from autosbp.service.tenancy import restricted_to_tenant
from tests.service import documents
from tests.service.postgres import Postgres

pytestmark = pytest.mark.integration

TENANTS = ("one", "two")


def fill(database: Database) -> None:
    """Seven jobs and a model of each of two tenants; the jobs of three moments."""
    moment = now()
    for tenant in TENANTS:
        with database.of(tenant).write() as session:
            for number in range(7):
                job = JobRow(
                    id=f"job-{tenant}-{number}", kind="echo", payload={"n": [number, None, "é"]}, progress=number / 3
                )
                job.created_at, job.state = (
                    moment + timedelta(microseconds=number // 3),
                    "running" if number % 2 else "queued",
                )
                session.add(job)
            session.add(
                ModelRow(id="mod-1", name=tenant, source="zoo", graph_hash="g", summary={"a": 1}, document={"b": 2})
            )


def members(row: object, kind: type[Any]) -> dict[str, Any]:
    return {column.name: getattr(row, column.name) for column in columns(kind)}


def test_a_picture_is_what_a_session_reads_of_the_tenants_own_row(database: Database) -> None:
    fill(database)
    for tenant in TENANTS:
        view = database.of(tenant)
        for kind, identifier in ((JobRow, f"job-{tenant}-3"), (ModelRow, "mod-1")):
            with view.read() as session:
                row = find(session, kind, identifier)
                assert members(require_row(view, kind, identifier, "row"), kind) == members(row, kind)
    assert require_row(database.of("two"), ModelRow, "mod-1", "model").name == "two"
    assert not hasattr(require_row(database.of("two"), ModelRow, "mod-1", "model"), "document")
    assert read_row(database.of("two"), JobRow, "job-one-3") is None
    with pytest.raises(ProblemError, match="no job 'job-one-3'"):
        require_row(database.of("two"), JobRow, "job-one-3", "job")


@pytest.mark.parametrize("asked", [{}, {"state": "queued"}, {"state": "queued", "kind": "echo"}, {"kind": "none"}])
def test_pictures_are_the_pages_that_a_session_reads(database: Database, asked: dict[str, str]) -> None:
    fill(database)
    moment = require_row(database.of("one"), JobRow, "job-one-3", "job").created_at
    for bounds in (
        {},
        {"after": moment},
        {"before": moment},
        {"after": moment, "before": moment + timedelta(seconds=1)},
    ):
        cursor: str | None = None
        while True:
            window = ListPage(2, cursor, **bounds)
            with database.of("one").read() as session:
                rows, following = page(session, JobRow, window, **asked)
            found, cursor = read_page(database.of("one"), JobRow, window, **asked)
            assert [members(row, JobRow) for row in found] == [members(row, JobRow) for row in rows]
            assert cursor == following
            if cursor is None:
                break


def test_a_statement_that_is_not_narrowed_to_a_tenant_is_not_run(database: Database) -> None:
    jobs, clusters = table_of(JobRow), table_of(ClusterRow)
    joined: Select[Any] = select(jobs.c.id).select_from(jobs.join(clusters, jobs.c.id == clusters.c.id))
    with pytest.raises(TypeError, match="is not a table"):
        restricted_to_tenant(joined)
    with pytest.raises(RuntimeError, match="raw SQL bypasses tenant isolation"):
        database.fetch(restricted_to_tenant(select(jobs.c.id)))
    with pytest.raises(RuntimeError, match="raw SQL bypasses tenant isolation"):
        database.execute((update(jobs).values(message="x"), {}))


def test_an_item_of_a_list_is_the_resource_itself(client: TestClient) -> None:
    calibration = client.post("/v1/calibrations", json=documents.calibration()).json()
    asked = {
        "model_id": client.post("/v1/models", json=documents.graph()).json()["id"],
        "cluster_id": calibration["cluster_id"],
        "options": documents.OPTIONS,
    }
    documents.wait(client, client.post("/v1/searches", json=asked).json()["id"])
    documents.wait(client, client.post("/v1/models:capture", json={"hf_config": {"model_type": "abacus"}}).json()["id"])
    for path in ("jobs", "models", "clusters", "calibrations", "searches"):
        items = client.get(f"/v1/{path}").json()["items"]
        assert items
        for item in items:
            whole = client.get(f"/v1/{path}/{item['id']}").json()
            assert item == {name: whole[name] for name in item}
            assert whole.keys() - item.keys() <= {"document"}


def test_connections_that_a_restart_of_the_server_has_cut_are_replaced_before_they_are_used(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(db, "_PING_AFTER_IDLE_S", 0.0)
    database = Database(postgres.database())
    database.upgrade()
    fill(database)
    with ThreadsAtOnce(4) as threads:
        threads.run(lambda: read_row(database.of("one"), JobRow, "job-one-3"))
    postgres.stop()
    with pytest.raises(OperationalError):
        read_row(database.of("one"), JobRow, "job-one-3")
    postgres.start()
    with ThreadsAtOnce(4) as threads:
        threads.run(lambda: read_row(database.of("one"), JobRow, "job-one-3"))
    with database.of("one").write() as session:
        assert find(session, JobRow, "job-one-3") is not None
    database.close()


class ThreadsAtOnce:
    """Threads that do something at the same time, each with a connection of its own; the first error is raised."""

    def __init__(self, count: int) -> None:
        self._start, self._errors = threading.Barrier(count), list[Exception]()
        self._threads: list[threading.Thread] = []
        self._count = count

    def __enter__(self) -> ThreadsAtOnce:
        return self

    def run(self, work: Any) -> None:
        def one() -> None:
            self._start.wait()
            try:
                work()
            except Exception as error:
                self._errors.append(error)

        self._threads = [threading.Thread(target=one) for _ in range(self._count)]
        for thread in self._threads:
            thread.start()

    def __exit__(self, *error: object) -> None:
        for thread in self._threads:
            thread.join()
        if self._errors:
            raise self._errors[0]


def test_writers_of_a_process_wait_for_each_other_and_give_up_in_time(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'test.db'}", lock_timeout_s=0.3)
    database.upgrade()
    with database.of("one").write() as session:
        session.add(JobRow(id="job-1", kind="echo", payload={}))
    jobs = table_of(JobRow)
    more = update(jobs).where(jobs.c.id == "job-1").values(revision=jobs.c.revision + 1)
    with ThreadsAtOnce(8) as threads:
        threads.run(lambda: [database.of("one").execute((more, {})) for _ in range(20)])
    assert require_row(database.of("one"), JobRow, "job-1", "job").revision == 161
    begun_s = time.monotonic()
    with database.write() as session:
        session.execute(more)
        with pytest.raises(OperationalError, match="locked"), ThreadsAtOnce(1) as threads:
            threads.run(lambda: database.of("one").execute((more, {})))
    assert 0.3 < time.monotonic() - begun_s < 30
    database.close()
