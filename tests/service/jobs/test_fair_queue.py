"""Tenants whose jobs wait in one lane are served in turn, by their weights, on SQLite and on PostgreSQL."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update

from autosbp.service.db import Database
from autosbp.service.jobs import _job_rows
from autosbp.service.jobs._fair_queue import FairQueue
from autosbp.service.jobs._job_rows import ClaimRules, QueueLimits
from autosbp.service.jobs._runner import DurableRunner, RunnerOptions
from autosbp.service.models import JobRow, now
from tests.service.documents import wait_until
from tests.service.tasks import kind

pytestmark = pytest.mark.integration

LIMITS = QueueLimits(999, 999)


def add(database: Database, tenant: str, count: int = 1, expected_s: float = 20.0, lane: str = "plan") -> None:
    for _ in range(count):
        with database.of(tenant).write() as session:
            row = JobRow(id=f"job-{secrets.token_hex(8)}", kind="echo", payload={}, expected_s=expected_s, lane=lane)
            _job_rows.add(session, row, LIMITS)


def claim(database: Database, fairness: FairQueue = FairQueue(), lane: str = "plan") -> str | None:  # noqa: B008
    """The tenant whose job is taken."""
    rules = ClaimRules(fairness, 3, lambda _kind: True, lambda _job: False)
    with database.write() as session:
        lease = _job_rows.claim(session, lane, "wrk-1", rules)
    return None if lease is None else lease.tenant


def end(database: Database, took_s: float) -> None:
    """End the job that runs."""
    with database.write() as session:
        row = session.scalars(select(JobRow).where(JobRow.state == "running")).one()
        row.started_at = now() - timedelta(seconds=took_s)
        _job_rows.finish(session, row, "succeeded", result={})


def served(database: Database, count: int, took_s: dict[str, float], fairness: FairQueue = FairQueue()) -> list[str]:  # noqa: B008
    """Whose jobs are run, one after the other."""
    order = []
    for _ in range(count):
        tenant = claim(database, fairness)
        assert tenant is not None
        order.append(tenant)
        end(database, took_s[tenant])
    return order


def test_tenants_get_equal_seconds_of_work_however_many_jobs_wait(database: Database) -> None:
    add(database, "many", 12)
    add(database, "long", 4)
    order = served(database, 8, {"many": 5.0, "long": 15.0})
    assert Counter(order) == {"many": 6, "long": 2}


def test_a_tenant_of_twice_the_weight_gets_twice_the_work(database: Database) -> None:
    add(database, "heavy", 9)
    add(database, "light", 9)
    order = served(database, 9, {"heavy": 10.0, "light": 10.0}, FairQueue({"heavy": 2.0}))
    assert Counter(order) == {"heavy": 6, "light": 3}


def test_idle_tenants_do_not_accumulate_credit(database: Database) -> None:
    add(database, "first", 9)
    assert served(database, 5, {"first": 10.0}) == ["first"] * 5
    add(database, "second", 4)
    order = served(database, 8, {"first": 10.0, "second": 10.0})
    assert order[0] == "second" and 2 <= order[:4].count("second") <= 3


def test_a_job_that_is_expected_to_take_long_is_charged_when_it_begins(database: Database) -> None:
    add(database, "long", 3, expected_s=3600.0)
    assert claim(database) == "long"
    add(database, "short", 3)
    assert [claim(database) for _ in range(4)] == ["short", "short", "short", "long"]


def test_a_tenant_runs_at_most_so_many_at_once_in_each_lane(database: Database) -> None:
    one = FairQueue(max_running=1)
    add(database, "mine", 2)
    add(database, "mine", 1, lane="measure")
    assert (claim(database, one), claim(database, one)) == ("mine", None)
    assert claim(database, one, "measure") == "mine"
    with database.write() as session:
        session.execute(update(JobRow).where(JobRow.state == "running").values(state="succeeded"))
    assert claim(database, one) == "mine"


def test_a_job_being_cancelled_does_not_block_others(database: Database) -> None:
    add(database, "one", 2)
    if database.is_sqlite:
        pytest.skip("SQLite has one writer")
    with database.write() as session:
        oldest = select(JobRow).order_by(JobRow.created_at).limit(1).with_for_update()
        held = session.scalars(oldest).one()
        assert claim(database) == "one"
        assert held.state == "queued"


@pytest.fixture
def runner(database: Database, tmp_path: Path) -> Iterator[DurableRunner]:
    runner = DurableRunner(database, {"nap": kind("nap")}, tmp_path, RunnerOptions(QueueLimits(999, 999)))
    yield runner
    runner.stop()


def test_one_search_starts_within_one_search_s_time_though_sixty_of_another_tenant_wait(
    database: Database, runner: DurableRunner
) -> None:
    def submit(tenant: str, **payload: Any) -> str:
        with database.of(tenant).write() as session:
            return runner.submit(session, "nap", payload).id

    def row(job_id: str) -> JobRow:
        found = runner.get(job_id)
        assert found is not None
        return found

    search_s = 1.5
    crowd = [submit("a", seconds=search_s) for _ in range(60)]
    runner.start()
    wait_until(lambda: row(crowd[1]).state == "running")
    mine = submit("b", seconds=search_s)
    wait_until(lambda: row(mine).state != "queued")
    waited_s = ((row(mine).started_at or now()) - row(mine).created_at).total_seconds()
    assert waited_s < search_s + 1.0, "and what it takes to start the next one"
    begun = sorted((row(job).started_at, job) for job in [*crowd, mine] if row(job).started_at is not None)
    assert [job for _, job in begun].index(mine) == 2
