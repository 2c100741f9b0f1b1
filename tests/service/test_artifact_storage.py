"""The stores on SQLite and on PostgreSQL: migrations, upgrades, tenants, locks, pages; and the service on PostgreSQL."""

from __future__ import annotations

import secrets
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from fastapi import Response
from sqlalchemy import bindparam, delete, func, insert, inspect, select, text, update
from sqlalchemy.exc import IntegrityError

from autosbp.cluster.spec import load_cluster
from autosbp.plan.plan import OLDER_OBJECTIVE_WARNING, Plan
from autosbp.service.db import Database
from autosbp.service.http import idempotency
from autosbp.service.http.idempotency import KeyClaim
from autosbp.service.jobs import _job_rows
from autosbp.service.jobs._base import Interrupted
from autosbp.service.jobs._fair_queue import FairQueue
from autosbp.service.jobs._job_rows import ClaimRules, Lease, QueueLimits
from autosbp.service.models import (
    AuditRow,
    Base,
    ClusterRow,
    JobRow,
    ModelRow,
    ReplayRow,
    SearchRow,
    StrategyRow,
    bind_parameters,
    now,
    table_of,
)
from autosbp.service.problem_details import ProblemError
from autosbp.service.services import clusters
from autosbp.service.services._insert_once import insert_content_fast
from autosbp.service.services._list_page import ListPage
from autosbp.service.services._queries import find, page
from autosbp.service.services.audit import delete_expired
from autosbp.service.settings import Settings
from autosbp.service.tenancy import TENANT_PARAMETER
from tests.service import documents
from tests.service.conftest import NewUrl, running
from tests.service.postgres import Postgres
from tests.service.test_jobs import events

pytestmark = pytest.mark.integration

DATA = Path(__file__).parent / "data"


def cluster(name: str = "local:2") -> ClusterRow:
    with_name = load_cluster(name)
    return ClusterRow(
        id=f"clu-{with_name.cluster_hash}",
        name=name,
        cluster_hash=with_name.cluster_hash,
        content_hash=with_name.content_hash,
        num_devices=with_name.num_devices,
        document=with_name.to_dict(),
    )


def test_the_migrations_build_what_the_models_describe_and_can_be_undone(new_url: NewUrl) -> None:
    database = Database(new_url())
    assert not database.is_current()
    with ThreadPoolExecutor(2) as pool:  # as two processes that start together
        list(pool.map(lambda _: database.upgrade(), range(2 if "postgres" in str(database.engine.url) else 1)))
    assert database.is_current()
    with database.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, Base.metadata) == []
    database.downgrade("base")
    with database.engine.connect() as connection:
        assert inspect(connection).get_table_names() == ["alembic_version"]
    database.close()


def load_first_schema(url: str) -> None:
    """A database as the first release left it, with one of everything."""
    if url.startswith("sqlite"):
        path = url.removeprefix("sqlite:///")
        connection = sqlite3.connect(path)
        connection.executescript((DATA / "first_schema.sqlite.sql").read_text())
        connection.close()
        return
    with psycopg.connect(url, autocommit=True) as raw:
        raw.execute((DATA / "first_schema.postgresql.sql").read_bytes())


def test_a_database_of_the_first_schema_upgrades_and_reads_back(new_url: NewUrl, tmp_path: Path) -> None:
    url = new_url()
    load_first_schema(url)
    with running(Settings(data_dir=tmp_path, database_url=url)) as client:
        kinds = ("models", "clusters", "calibrations", "searches", "strategies", "trials", "jobs", "analyses")
        lists = {kind: client.get(f"/v1/{kind}").json()["items"] for kind in kinds}
        assert [len(lists[kind]) for kind in kinds] == [1, 1, 1, 1, 1, 1, 3, 0]
        for kind, items in lists.items():
            for item in items:
                answer = client.get(f"/v1/{kind}/{item['id']}")
                assert answer.status_code == 200 and answer.headers["etag"], (kind, answer.text)
        (strategy,), (search,), (trial,) = lists["strategies"], lists["searches"], lists["trials"]
        plan = Plan.from_dict(client.get(f"/v1/strategies/{strategy['id']}").json())
        assert plan.stored_id == strategy["id"] == search["strategy_id"] == trial["strategy_id"]
        assert strategy["step_time_s"] == plan.document["step_time_s"] == trial["predicted"]["step_time_s"]
        page = client.get(f"/strategies/{strategy['id']}", headers={"accept": "text/html"}).text
        assert OLDER_OBJECTIVE_WARNING in page and "no bound" in page
        assert (trial["measured_step_time_s"], trial["job"]["state"]) == (0.0125, "succeeded")
        assert (trial["label"], trial["passed"]) == (None, None)
        assert [job["state"] for job in lists["jobs"]] == ["failed", "succeeded", "succeeded"]
        assert lists["calibrations"][0]["newest_id"] == lists["calibrations"][0]["id"]
        assert client.post("/v1/models", json=documents.graph()).status_code == 200, "what is stored is known"
        exported = client.get(f"/v1/strategies/{strategy['id']}/exports/dtensor")
        assert exported.status_code == 200
    database = Database(url)
    with database.of("another").write() as session:
        session.add(cluster())
    with pytest.raises(RuntimeError, match="tenants other than"):
        database.downgrade("0001")
    assert database.is_current(), "a refused downgrade changes nothing"
    with database.write() as session:
        session.execute(delete(ClusterRow).where(ClusterRow.tenant == "another"))
    database.downgrade("0001")
    with database.engine.connect() as connection:
        sums = connection.execute(text("SELECT step_time_s FROM strategies")).scalars().all()
        assert sums == [trial["predicted"]["step_time_s"]]
    database.close()


def test_steps_of_strategies_become_the_simulated_ones_where_plans_have_both(new_url: NewUrl) -> None:
    database = Database(new_url())
    plans = {
        "both": {"step_time_s": 0.3, "simulated_step_time_s": 0.1 + 0.2},
        "sum": {"step_time_s": 2.5},
        "none": {"step_time_s": 2.5, "simulated_step_time_s": None},
        "now": {"schema": "autosbp.plan/2", "step_time_s": 2.5},
    }
    database.upgrade()
    database.downgrade("0010")
    tenants = ("one", "two")  # who has them does not matter
    with database.engine.begin() as connection:
        for tenant in tenants:
            model = {"id": "m", "tenant": tenant, "name": "m", "graph_hash": "h", "source": "zoo", "document": {}}
            connection.execute(insert(ModelRow), {**model, "summary": {}, "created_at": now()})
            row = {"id": "c", "tenant": tenant, "name": "c", "cluster_hash": "h", "num_devices": 2, "document": {}}
            connection.execute(insert(ClusterRow), {**row, "created_at": now()})
            known = {"tenant": tenant, "model_id": "m", "cluster_id": "c", "searcher": "auto", "created_at": now()}
            costs = {"comm_bytes_per_device": 1, "memory_bytes_per_device": 1}
            for name, plan in plans.items():
                values = {**known, **costs, "id": name, "step_time_s": plan["step_time_s"], "plan": plan}
                connection.execute(insert(StrategyRow), values)
    for move, step_s in ((database.upgrade, 0.1 + 0.2), (lambda: database.downgrade("0010"), 0.3)):
        move()
        with database.engine.connect() as connection:
            found = connection.execute(select(table_of(StrategyRow).c.id, table_of(StrategyRow).c.step_time_s)).all()
        assert sorted(found) == sorted(2 * [(name, step_s if name == "both" else 2.5) for name in plans])
    database.close()


def test_a_tenants_session_sees_and_writes_its_own_rows_alone(database: Database) -> None:
    one, two = database.of("one"), database.of("two")
    for view in (one, two):
        with view.write() as session:
            session.add(cluster())
    with one.write() as session:
        session.add(cluster("local:3"))
    everything = select(ClusterRow)
    with one.read() as mine, two.read() as theirs, database.read() as system:
        assert [len(each.scalars(everything).all()) for each in (mine, theirs, system)] == [2, 1, 3]
        assert theirs.scalar(select(func.count(ClusterRow.id))) == 1
        assert theirs.scalar(select(func.count()).select_from(ClusterRow)) == 1
        assert find(theirs, ClusterRow, cluster("local:3").id) is None
        assert theirs.get(ClusterRow, (cluster("local:3").id, "one")) is None
    with two.write() as session:
        session.execute(update(ClusterRow).values(name="renamed"))
        session.execute(delete(ClusterRow).where(ClusterRow.num_devices == 3))
    with one.read() as session:
        assert sorted(session.scalars(select(ClusterRow.name))) == ["local:2", "local:3"]
    with pytest.raises(RuntimeError, match="'two' must not write a row of tenant 'one'"), two.write() as session:
        row = cluster("local:4")
        row.tenant = "one"
        session.add(row)


def test_a_reference_to_another_tenants_row_is_refused(database: Database) -> None:
    with database.of("one").write() as session:
        session.add(cluster())
        model = ModelRow(id="mod-1", name="m", source="graph", graph_hash="1", summary={}, document={})
        session.add(model)
        job = _job_rows.add(session, waiting("search"), QueueLimits(9, 9))
    asked = {"model_id": "mod-1", "cluster_id": cluster().id, "job_id": job.id, "options": {}}
    with database.of("one").write() as session:
        session.add(SearchRow(id="sea-1", **asked))
    with pytest.raises(IntegrityError), database.of("two").write() as session:
        session.add(SearchRow(id="sea-2", **asked))


def test_equal_inserts_at_once_make_one_row(database: Database) -> None:
    def insert(_: int) -> bool:
        with database.of("one").write() as session:
            return clusters.store(session, load_cluster("local:2x2"))[1]

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(insert, range(24))) == 1


def test_equal_resources_that_are_put_at_once_are_one_row(database: Database) -> None:
    def put(number: int) -> tuple[ClusterRow, bool]:
        return insert_content_fast(database.of(("one", "two")[number % 2]), cluster("local:2x2"))

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(put, range(24)))
    assert sum(is_new for _, is_new in found) == 2, "one of each tenant"
    with database.of("one").read() as session:
        stored = session.scalars(select(ClusterRow)).one()
        assert {row.created_at for row, _ in found[::2]} == {stored.created_at}
        assert all(row.document == stored.document == cluster("local:2x2").document for row, _ in found)


def test_a_page_has_neither_gaps_nor_repeats_when_moments_are_equal(database: Database) -> None:
    moment = now()
    with database.of("one").write() as session:
        for number in range(7):
            row = AuditRow(id=f"aud-{number}", created_at=moment, address="", method="POST", path="/")
            row.status, row.request_id = 200, ""
            session.add(row)
    seen: list[str] = []
    cursor = None
    with database.of("one").read() as session:
        while True:
            rows, cursor = page(session, AuditRow, ListPage(limit=3, cursor=cursor))
            seen += [row.id for row in rows]
            if cursor is None:
                break
    assert seen == [f"aud-{number}" for number in reversed(range(7))]


RULES = ClaimRules(FairQueue(), 3, lambda _kind: True, lambda _job: False)


def waiting(kind: str = "echo", expected_s: float = 20.0) -> JobRow:
    return JobRow(id=f"job-{secrets.token_hex(8)}", kind=kind, payload={}, expected_s=expected_s)


def test_queues_are_full_for_each_tenant(database: Database) -> None:
    limits = QueueLimits(12, 8)
    for tenant in ("one", "one", "two") * 4:
        with database.of(tenant).write() as session:
            _job_rows.add(session, waiting(), limits)
    for tenant, limit in (("one", 12), ("three", 12)):
        with pytest.raises(ProblemError) as refused, database.of(tenant).write() as session:
            _job_rows.add(session, waiting(), limits)
        assert refused.value.problem["limit"] == limit
    with pytest.raises(ProblemError) as refused, database.of("one").write() as session:
        _job_rows.add(session, waiting(), QueueLimits(99, 8))
    assert refused.value.problem["limit"] == 8


def test_queues_are_full_when_what_waits_may_take_long(database: Database) -> None:
    def add(tenant: str, expected_s: float) -> None:
        with database.of(tenant).write() as session:
            _job_rows.add(session, waiting(expected_s=expected_s), QueueLimits(99, 99, 1000.0, 300.0))

    add("one", 900.0)  # one that is alone may take as long as any
    for tenant, seconds, limit in (("one", 50.0, 300.0), ("two", 200.0, 1000.0)):
        with pytest.raises(ProblemError) as refused:
            add(tenant, seconds)
        assert (refused.value.status, refused.value.problem["limit"]) == (429, limit)
        assert f"may take 900 s and this one {seconds:g} s more" in refused.value.problem["detail"]
    add("two", 100.0)


def test_of_workers_that_claim_at_once_one_holds_the_job(database: Database) -> None:
    with database.of("one").write() as session:
        _job_rows.add(session, waiting(), QueueLimits(9, 9))
    start = threading.Barrier(4)

    def claim(number: int) -> Lease | None:
        start.wait()
        with database.write() as session:
            return _job_rows.claim(session, "plan", f"wrk-{number}", RULES)

    with ThreadPoolExecutor(4) as pool:
        leases = [lease for lease in pool.map(claim, range(4)) if lease is not None]
    assert [lease.fence for lease in leases] == [1]
    with database.write() as session:
        _job_rows.report(session, leases[0], 0.5, "half", {})
        _job_rows.revoke_leases(session, JobRow.worker.is_not(None))
    with pytest.raises(Interrupted), database.write() as session:
        _job_rows.report(session, leases[0], 1.0, "more", {})
    with database.write() as session:
        assert _job_rows.claim(session, "plan", "wrk-9", RULES) is None, "its processes may still live"
        _job_rows.requeue(session, JobRow.worker.is_(None), "its worker died")
    with database.read() as session:
        row = session.scalars(select(JobRow)).one()
    assert (row.state, row.worker, row.attempts, row.message) == ("queued", None, 1, "queued again: its worker died")
    assert row.progress is None
    with database.write() as session:
        again = _job_rows.claim(session, "plan", "wrk-9", RULES)
    assert again is not None and again.fence > leases[0].fence


def hold(database: Database, key: str, print_: str) -> KeyClaim | Response:
    return idempotency.claim_key(database, key, print_, 60.0) or idempotency.replay_or_reclaim(
        database, key, print_, 60.0
    )


def test_one_of_many_requests_at_once_takes_an_idempotency_key(database: Database) -> None:
    start = threading.Barrier(6)

    def take(_: int) -> KeyClaim | Response | int:
        start.wait()
        try:
            return hold(database.of("one"), "key", "print")
        except ProblemError as refusal:
            return refusal.status

    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(take, range(6)))
    (claim,) = [each for each in found if isinstance(each, KeyClaim)]
    assert found.count(409) == 5
    answer = Response('{"a": 1}', 201, {"location": "/x"}, "application/json")
    assert database.of("one").execute(idempotency.settle_statement(KeyClaim(claim.id, "another"), answer)) == 0
    assert database.of("two").execute(idempotency.settle_statement(claim, answer)) == 0
    assert database.of("one").execute(idempotency.settle_statement(claim, answer)) == 1
    stored = hold(database.of("one"), "key", "print")
    assert isinstance(stored, Response)
    assert (stored.status_code, stored.body, stored.headers["location"]) == (201, b'{"a": 1}', "/x")
    assert isinstance(hold(database.of("two"), "key", "print"), KeyClaim), "a key is its tenant's"
    with pytest.raises(ProblemError, match="a different method, path or body"):
        hold(database.of("one"), "key", "other")
    with database.write() as session:
        session.execute(update(ReplayRow).values(expires_at=now() - timedelta(seconds=1)))
    delete_expired(database, Settings())
    assert isinstance(hold(database.of("one"), "key", "other"), KeyClaim)


def test_changes_that_are_made_together_are_all_made_or_none(database: Database) -> None:
    one, audit = database.of("one"), table_of(AuditRow)
    claim, answer = hold(one, "key", "print"), Response('{"a": 1}', 201)
    assert isinstance(claim, KeyClaim)
    note = insert(audit).values({**bind_parameters(audit, "noted_"), "tenant": bindparam(TENANT_PARAMETER)})
    columns = {"id": "aud-1", "created_at": now(), "caller": None, "address": "", "method": "POST", "path": "/x"}
    columns |= {"status": 202, "request_id": "r", "location": None}
    entry: dict[str, object] = {f"noted_{name}": value for name, value in columns.items()}
    assert one.execute((note, entry)) == 1
    with pytest.raises(IntegrityError):
        one.execute(idempotency.settle_statement(claim, answer), (note, entry))
    with pytest.raises(ProblemError, match="still in progress"):
        hold(one, "key", "print")
    assert one.execute(idempotency.settle_statement(claim, answer), (note, {**entry, "noted_id": "aud-2"})) == 1
    with one.read() as session:
        stored = session.scalars(select(ReplayRow)).one()
        assert (stored.id, stored.status, stored.body, stored.headers) == (claim.id, 201, '{"a": 1}', {})
        assert {row.id: row.status for row in session.scalars(select(AuditRow))} == {"aud-1": 202, "aud-2": 202}
    assert one.execute(idempotency.settle_statement(claim, None), (note, {**entry, "noted_id": "aud-3"})) == 1
    assert isinstance(hold(one, "key", "other"), KeyClaim), "the key was given back"


def test_the_service_searches_and_is_followed_on_postgresql(postgres: Postgres, tmp_path: Path) -> None:
    with running(Settings(data_dir=tmp_path, database_url=postgres.database())) as client:
        assert client.get("/readyz").status_code == 200
        calibration = client.post("/v1/calibrations", json=documents.calibration()).json()
        asked: dict[str, Any] = {
            "model_id": client.post("/v1/models", json=documents.graph()).json()["id"],
            "cluster_id": calibration["cluster_id"],
            "calibration_id": calibration["id"],
            "options": documents.OPTIONS,
        }
        job = client.post("/v1/searches", json=asked, headers={"idempotency-key": "k"}).json()
        *_, (_, name, last) = events(client.get(f"/v1/jobs/{job['id']}/events").text)
        assert (name, last["state"]) == ("end", "succeeded"), last
        again = client.post("/v1/searches", json=asked)
        assert (again.status_code, again.json()["id"]) == (200, job["id"])
        listed = client.get("/v1/searches", params={"state": "succeeded"}).json()["items"]
        assert [item["strategy_id"] for item in listed] == [last["result"]["strategy_id"]]
        assert client.get("/v1/searches", params={"state": "failed"}).json()["items"] == []
        assert 'autosbp_jobs{kind="search",state="succeeded"} 1.0' in client.get("/metrics").text


def test_the_newest_strategies_of_a_tenant_are_read_from_an_index(database: Database) -> None:
    if database.engine.dialect.name == "sqlite":
        query = (
            "EXPLAIN QUERY PLAN SELECT id FROM strategies WHERE tenant = 'a' AND (created_at, id) < ('2026', 'b') "
            "ORDER BY created_at DESC, id DESC LIMIT 51"
        )
        with database.read() as session:
            (step,) = session.execute(text(query)).all()
        assert "ix_strategies_tenant_created_at_id (tenant=? AND (created_at,id)<(?,?))" in step[3]
    names = {index["name"] for index in inspect(database.engine).get_indexes(StrategyRow.__tablename__)}
    for filters in ("", "_model_id", "_cluster_id", "_calibration_id"):
        assert f"ix_strategies_tenant{filters}_created_at_id" in names
    assert JobRow.__tablename__ in inspect(database.engine).get_table_names()
