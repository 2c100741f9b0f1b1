"""Statements on the event loop: what they see is what threads see, and while they wait for the server, other work goes on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from fastapi import Response
from sqlalchemy import func, select, text
from sqlalchemy.exc import DBAPIError

from autosbp.service.async_db import in_async_run
from autosbp.service.db import Database
from autosbp.service.http import idempotency
from autosbp.service.http.idempotency import KeyClaim
from autosbp.service.models import ModelRow
from autosbp.service.services._fast_reads import read_row
from tests.service.postgres import Postgres
from tests.service.services.test_fast_reads import TENANTS, fill, members

READS = 40


@pytest.fixture
def server(postgres: Postgres) -> Iterator[Database]:
    database = Database(postgres.database(), lock_timeout_s=5.0)
    database.upgrade()
    fill(database)
    yield database
    database.close()


def seen(database: Database) -> tuple[int, str | None, bool]:
    """With a session and without: how many models the tenant has, the name of one, and whether it was awaited."""
    with database.read() as session:
        count = session.scalar(select(func.count(ModelRow.id)))
    found = read_row(database, ModelRow, "mod-1")
    return int(count or 0), found.name if found else None, in_async_run()


def test_awaited_reads_see_the_tenants_rows_alone_and_need_no_thread(server: Database) -> None:
    async def main() -> None:
        threads = threading.active_count()
        found = await asyncio.gather(
            *(server.of(TENANTS[at % 2]).run_read(seen, server.of(TENANTS[at % 2])) for at in range(READS))
        )
        assert found == [(1, TENANTS[at % 2], True) for at in range(READS)]
        assert threading.active_count() == threads
        await server.close_async()

    asyncio.run(main())
    assert seen(server.of(TENANTS[0])) == (1, TENANTS[0], False)


def test_a_row_is_the_same_awaited_or_not(server: Database) -> None:
    view = server.of(TENANTS[0])

    async def main() -> object:
        found = await view.run_read(read_row, view, ModelRow, "mod-1")
        await server.close_async()
        return found

    assert members(asyncio.run(main()), ModelRow) == members(read_row(view, ModelRow, "mod-1"), ModelRow)


def test_the_loop_goes_on_while_reads_wait_for_a_lock(server: Database) -> None:
    view = server.of(TENANTS[0])

    async def main() -> None:
        with server.engine.begin() as connection:
            connection.exec_driver_sql("LOCK TABLE models IN ACCESS EXCLUSIVE MODE")
            waiting = [asyncio.create_task(view.run_read(seen, view)) for _ in range(READS)]
            for _ in range(30):
                await asyncio.sleep(0.01)
            assert not any(each.done() for each in waiting)
        assert [each[0] for each in await asyncio.gather(*waiting)] == [1] * READS
        await server.close_async()

    asyncio.run(main())


def test_a_read_that_fails_or_is_cancelled_leaves_the_others_alone(server: Database) -> None:
    def wrong() -> None:
        with server.read() as session:
            session.connection().exec_driver_sql("SELECT nothing FROM nowhere")

    def long() -> None:
        with server.read() as session:
            session.connection().exec_driver_sql("SELECT pg_sleep(60)")

    async def main() -> None:
        view = server.of(TENANTS[1])
        for _ in range(20):  # more than there are connections
            with pytest.raises(DBAPIError):
                await server.run_read(wrong)
            task = asyncio.create_task(server.run_read(long))
            await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert await view.run_read(seen, view) == (1, TENANTS[1], True)
        await server.close_async()

    asyncio.run(main())


def test_threads_read_beside_the_loop(server: Database) -> None:
    view = server.of(TENANTS[0])

    async def main() -> None:
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(4) as pool:
            threads = [loop.run_in_executor(pool, seen, view) for _ in range(READS)]
            here = [view.run_read(seen, view) for _ in range(READS)]
            assert {each[2] for each in await asyncio.gather(*threads)} == {False}
            assert {each[2] for each in await asyncio.gather(*here)} == {True}
        await server.close_async()

    asyncio.run(main())


def test_claims_and_answers_are_written_without_a_thread(server: Database) -> None:
    view, answer = server.of(TENANTS[0]), Response("{}", 201)

    def settled(claim: KeyClaim) -> int:
        return view.execute(idempotency.settle_statement(claim, answer))

    def shown() -> object:
        with server.read() as session:
            return session.scalar(text("SHOW synchronous_commit"))

    async def main() -> None:
        threads = threading.active_count()
        asked = [f"key-{at // 2}" for at in range(READS)]
        found = await asyncio.gather(*(view.tell(idempotency.claim_key, view, key, "print", 60.0) for key in asked))
        claims = [each for each in found if each is not None]
        assert len({each.id for each in claims}) == len(claims) == READS // 2, "each key is taken once"
        assert await server.run_read(shown) == "on", "a claim's haste is its own"
        assert await asyncio.gather(*(view.tell(settled, each) for each in claims)) == [1] * len(claims)
        assert threading.active_count() == threads
        await server.close_async()

    asyncio.run(main())
    again = idempotency.replay_or_reclaim(view, "key-0", "print", 60.0)
    assert isinstance(again, Response) and (again.status_code, again.body) == (201, b"{}")
