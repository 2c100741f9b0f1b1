"""/openapi.json, /healthz and /readyz: for anybody, so they have to be cheap."""

from __future__ import annotations

import json
import threading

from starlette.testclient import TestClient

from autosbp.service.thread_pools import CoalescingThread
from tests.service.conftest import state_of


def test_the_interface_is_written_once_and_has_an_etag(shared: TestClient) -> None:
    first = shared.get("/openapi.json")
    assert first.status_code == 200 and first.headers["content-type"] == "application/json"
    known = {"if-none-match": first.headers["etag"]}
    again = shared.get("/openapi.json", headers=known)
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"])
    assert json.loads(first.content) == shared.app.openapi()  # type: ignore[attr-defined]
    assert shared.head("/openapi.json").headers["content-length"] == str(len(first.content))


def test_health_needs_none_of_the_threads_that_requests_wait_for(shared: TestClient) -> None:
    """With each of them held, both are answered."""
    portal, held, ending = shared.portal, threading.Barrier(state_of(shared).settings.threads + 1), threading.Event()
    assert portal is not None

    def hold() -> None:
        held.wait(10)
        ending.wait(30)

    from anyio import to_thread

    waiting = [portal.start_task_soon(to_thread.run_sync, hold) for _ in range(state_of(shared).settings.threads)]
    try:
        held.wait(10)
        assert shared.get("/healthz").status_code == 200
        assert shared.get("/readyz").status_code in (200, 503)
    finally:
        ending.set()
        for each in waiting:
            each.result(30)


def test_of_many_that_ask_whether_it_is_ready_few_are_looked_after(shared: TestClient) -> None:
    portal, calls, thread = shared.portal, list[int](), CoalescingThread()
    assert portal is not None
    first, going_on = threading.Event(), threading.Event()

    def look() -> int:
        calls.append(len(calls))
        first.set()
        going_on.wait(10)
        return calls[-1]

    asked = [portal.start_task_soon(thread.run, look)]
    first.wait(10)
    asked += [portal.start_task_soon(thread.run, look) for _ in range(100)]
    portal.call(lambda: None)
    going_on.set()
    answers = [each.result(10) for each in asked]
    assert answers[0] == 0 and set(answers[1:]) == {1} and calls == [0, 1]
