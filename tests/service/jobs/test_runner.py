"""The runner keeps the promises of ``autosbp.service.jobs._base``."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from sqlalchemy import event, select, text

from autosbp.service.db import Database, _alembic
from autosbp.service.jobs._base import JobKind
from autosbp.service.jobs._job_rows import QueueLimits
from autosbp.service.jobs._processes import descendants, pid_scope
from autosbp.service.jobs._runner import DurableRunner, RunnerOptions
from autosbp.service.models import JobRow
from autosbp.service.problem_details import ProblemError
from tests.service.conftest import NewUrl
from tests.service.documents import wait_until
from tests.service.postgres import Postgres
from tests.service.tasks import kind

pytestmark = pytest.mark.integration

NAMES = ("echo", "hold", "stubborn", "die", "keep_and_die", "infeasible", "surprise", "no_json")


def fail_to_store(_session: Any, job: JobRow, _found: Any) -> dict[str, Any]:
    job.resource = "/half/stored"
    raise RuntimeError("the disk is full")


KINDS = {
    **{name: kind(name) for name in NAMES},
    "die_once": kind("die", resumable=False),
    "once": kind("hold", resumable=False),
    "unstorable": JobKind("tests.service.tasks:echo", lambda _, job: job.payload, fail_to_store, True),
    "measured": replace(kind("echo"), lane="measure"),
    "unknown_task": kind("nothing_of_that_name"),
}


class Bench:
    """A runner on a database of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._gates = folder, 0
        self.database = Database(f"sqlite:///{folder / 'test.db'}")
        self.database.upgrade()
        self.runner = self.make()

    def make(self) -> DurableRunner:
        options = RunnerOptions(QueueLimits(4, 4), max_attempts=2, cancel_grace_s=0.5)
        return DurableRunner(self.database, KINDS, self.folder, options)

    def submit(self, kind: str, **payload: Any) -> str:
        with self.database.write() as session:
            return self.runner.submit(session, kind, payload).id

    def job(self, job_id: str) -> JobRow:
        row = self.runner.get(job_id)
        assert row is not None
        return row

    def wait(self, job_id: str, *states: str) -> JobRow:
        deadline_s = time.monotonic() + 30
        while (row := self.job(job_id)).state not in states:
            assert time.monotonic() < deadline_s, (row.state, row.message)
            time.sleep(0.02)
        return row

    def hold(self, kind: str = "hold") -> str:
        """Start a job that runs until the gate opens."""
        self._gates += 1
        job_id = self.submit(kind, gate=str(self._gate))
        deadline_s = time.monotonic() + 30
        while self.job(job_id).message != "holding":
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
        return job_id

    def open(self) -> None:
        """Let the held job finish."""
        self._gate.touch()

    def drain(self) -> None:
        """Wait until no job is left."""
        self.open()
        with self.database.read() as session:
            left = session.scalars(select(JobRow.id).where(JobRow.state.in_(("queued", "running")))).all()
        for job_id in left:
            self.wait(job_id, "succeeded", "failed", "cancelled")

    @property
    def _gate(self) -> Path:
        return self.folder / f"gate-{self._gates}"


@contextmanager
def started(folder: Path) -> Iterator[Bench]:
    bench = Bench(folder)
    bench.runner.start()
    yield bench
    bench.runner.stop()
    bench.database.close()


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with started(tmp_path_factory.mktemp("runner")) as bench:
        yield bench


@pytest.fixture
def bench(warm: Bench) -> Iterator[Bench]:
    """A runner without jobs, whose worker is warm."""
    yield warm
    warm.drain()


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Bench]:
    """A runner that the test may stop."""
    with started(tmp_path) as bench:
        yield bench


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def kill_workers_of(pid: int) -> None:
    """Kill the worker processes themselves, below their reapers."""
    for each in descendants(pid):
        if b"autosbp.service.jobs._worker_process" in Path(f"/proc/{each}/cmdline").read_bytes().split(b"\0"):
            os.kill(each, signal.SIGKILL)
            wait_until(lambda each=each: not is_running(each))  # type: ignore[misc]


def test_a_job_goes_from_queued_to_succeeded_with_progress_on_the_way(bench: Bench) -> None:
    seen: list[Any] = []

    def note(_c: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if statement.startswith("UPDATE jobs"):
            seen.append(parameters)

    event.listen(bench.database.engine, "before_cursor_execute", note)
    job = bench.wait(bench.submit("echo", a=[1, "é"]), "succeeded")
    event.remove(bench.database.engine, "before_cursor_execute", note)
    assert job.result == {"a": [1, "é"]}
    assert (job.progress, job.attempts, job.problem) == (1.0, 1, None)
    assert job.started_at and job.finished_at and job.created_at <= job.started_at <= job.finished_at
    assert any("half" in parameters for parameters in seen)
    assert any('{"best_s":1.5,"bound_s":null}' in parameters for parameters in seen)


def test_jobs_run_one_at_a_time_in_the_order_in_which_they_came(bench: Bench) -> None:
    first = bench.hold()
    rest = [bench.submit("echo", n=n) for n in range(3)]
    assert [bench.job(job).state for job in rest] == ["queued"] * 3
    bench.open()
    done = [bench.wait(job, "succeeded") for job in (first, *rest)]
    assert done == sorted(done, key=lambda job: str(job.started_at))


def test_a_job_that_was_not_committed_never_runs(bench: Bench) -> None:
    with pytest.raises(ZeroDivisionError), bench.database.write() as session:
        job_id = bench.runner.submit(session, "echo", {}).id
        raise ZeroDivisionError
    assert bench.runner.get(job_id) is None


def test_too_many_waiting_jobs_are_refused(bench: Bench) -> None:
    bench.hold()
    for _ in range(4):
        bench.submit("echo")
    with pytest.raises(ProblemError) as caught:
        bench.submit("echo")
    assert caught.value.status == 429
    assert caught.value.problem["limit"] == 4


def test_cancelling_a_queued_job_ends_it_at_once_and_it_never_runs(bench: Bench) -> None:
    bench.hold()
    job_id = bench.submit("echo")
    cancelled = bench.runner.cancel(job_id)
    assert cancelled is not None and cancelled.state == "cancelled"
    bench.open()
    last = bench.wait(bench.submit("echo"), "succeeded")
    assert last.finished_at is not None
    assert bench.job(job_id).started_at is None


def test_a_measurement_that_waits_for_its_turn_is_cancelled_at_once_or_runs_when_nothing_else_does(
    bench: Bench,
) -> None:
    bench.hold()
    cancelled, measured = bench.submit("measured"), bench.submit("measured", a=1)
    bench.runner.cancel(cancelled)
    assert [bench.job(job).state for job in (cancelled, measured)] == ["cancelled", "queued"]
    bench.open()
    assert bench.wait(measured, "succeeded").result == {"a": 1}
    assert bench.job(cancelled).attempts == 0


def test_cancelling_a_running_job_stops_it_and_drops_what_it_found(bench: Bench) -> None:
    job_id = bench.hold()
    requested = bench.runner.cancel(job_id)
    assert requested is not None and requested.cancel_requested
    job = bench.wait(job_id, "cancelled", "succeeded", "failed")
    assert (job.state, job.result, job.problem) == ("cancelled", None, None)


def test_cancelling_twice_changes_nothing_and_cancelling_a_finished_job_is_a_conflict(bench: Bench) -> None:
    job_id = bench.hold()
    bench.runner.cancel(job_id)
    bench.wait(job_id, "cancelled")
    again = bench.runner.cancel(job_id)
    assert again is not None and again.state == "cancelled"
    done = bench.wait(bench.submit("echo"), "succeeded")
    with pytest.raises(ProblemError) as caught:
        bench.runner.cancel(done.id)
    assert caught.value.status == 409
    assert bench.runner.cancel("job-none") is None


def test_a_job_that_does_not_stop_is_killed_with_the_processes_that_it_started(bench: Bench) -> None:
    pid_file = bench.folder / "pid"
    job_id = bench.submit("stubborn", pid=str(pid_file))
    deadline_s = time.monotonic() + 30
    while not (pid_file.exists() and pid_file.read_text()):
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    pid = int(pid_file.read_text())
    assert is_running(pid)
    bench.runner.cancel(job_id)
    bench.wait(job_id, "cancelled")
    assert not is_running(pid)
    bench.wait(bench.submit("echo"), "succeeded")


def test_a_failure_carries_the_problem_of_its_error(bench: Bench) -> None:
    job = bench.wait(bench.submit("infeasible"), "failed")
    assert job.problem == {
        "type": "urn:autosbp:problem:infeasible",
        "title": "No feasible strategy",
        "status": 422,
        "detail": "infeasible: memory_limit_bytes = 10; at least 20 is required",
        "instance": f"/v1/jobs/{job.id}",
        "constraint": "memory_limit_bytes",
        "limit": 10.0,
        "needed": 20.0,
    }


@pytest.mark.parametrize("name", ["surprise", "no_json", "unstorable", "unknown_task"])
def test_an_unexpected_failure_is_an_opaque_problem_that_stores_nothing(bench: Bench, name: str) -> None:
    job = bench.wait(bench.submit(name), "failed")
    assert job.problem is not None and job.problem["status"] == 500
    assert "secret" not in str(job.problem)
    assert (job.result, job.resource) == (None, None)
    bench.wait(bench.submit("echo"), "succeeded")


def test_a_job_of_an_unknown_kind_fails_and_says_so(bench: Bench) -> None:
    job = bench.wait(bench.submit("embroider"), "failed")
    assert job.problem is not None and "embroider" in job.problem["detail"]


def test_a_job_that_kills_its_worker_twice_fails_and_the_next_one_gets_a_new_worker(bench: Bench) -> None:
    job = bench.wait(bench.submit("die"), "failed")
    assert job.problem is not None and job.problem["type"] == "urn:autosbp:problem:worker-died"
    assert job.problem["detail"] == "the worker process died twice while it ran this job: status 7"
    assert job.attempts == 2
    bench.wait(bench.submit("echo"), "succeeded")


def test_a_job_that_must_not_be_repeated_fails_by_the_first_death_of_its_worker(bench: Bench) -> None:
    job = bench.wait(bench.submit("die_once"), "failed")
    assert job.problem is not None and job.attempts == 1
    assert job.problem["detail"] == "the worker process died while it ran this job: status 7"


def test_a_job_whose_worker_is_killed_once_is_started_again(bench: Bench) -> None:
    job_id = bench.hold()
    kill_workers_of(os.getpid())
    wait_until(lambda: (bench.job(job_id).attempts, bench.job(job_id).message) == (2, "holding"))
    bench.open()
    assert bench.wait(job_id, "succeeded", "failed").problem is None


def test_a_worker_that_dies_when_it_has_kept_what_it_found_is_no_reason_to_find_it_again(bench: Bench) -> None:
    path = bench.folder.resolve() / "jobs" / "job-keeps" / "outcome.json"
    with bench.database.write() as session:
        bench.runner.submit(session, "keep_and_die", {"path": str(path)}, job_id="job-keeps")
    job = bench.wait("job-keeps", "succeeded", "failed")
    assert (job.result, job.attempts) == ({"found": 1}, 1), job.problem


def test_a_worker_that_dies_while_it_waits_is_replaced_and_no_attempt_is_counted(bench: Bench) -> None:
    bench.wait(bench.submit("echo"), "succeeded")
    kill_workers_of(os.getpid())
    job = bench.wait(bench.submit("echo", a=1), "succeeded", "failed")
    assert (job.state, job.attempts) == ("succeeded", 1), job.problem


def test_where_no_worker_can_be_started_jobs_wait_and_the_runner_says_so(
    fresh: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    job_id = fresh.submit("echo")
    wait_until(lambda: fresh.runner.unhealthy_reason() is not None)
    assert "cannot start worker processes" in (fresh.runner.unhealthy_reason() or "")
    monkeypatch.undo()
    assert fresh.wait(job_id, "succeeded", "failed").attempts == 1
    assert fresh.runner.unhealthy_reason() is None


def test_a_stop_queues_a_resumable_job_again_and_the_next_start_finishes_it(fresh: Bench) -> None:
    job_id = fresh.hold()
    fresh.runner.stop()
    stopped = fresh.job(job_id)
    assert (stopped.state, stopped.message) == ("queued", "queued again: interrupted by a shutdown")
    assert (stopped.worker, stopped.started_at) == (None, None)
    fresh.open()
    fresh.runner = fresh.make()
    fresh.runner.start()
    assert fresh.wait(job_id, "succeeded").attempts == 2


def test_an_interrupted_job_that_must_not_be_repeated_fails_at_the_next_start(fresh: Bench) -> None:
    job_id = fresh.hold("once")
    fresh.runner.stop()
    fresh.runner = fresh.make()
    fresh.runner.start()
    job = fresh.wait(job_id, "failed", "succeeded")
    assert job.problem is not None
    assert (job.problem["type"], job.problem["detail"]) == (
        "urn:autosbp:problem:interrupted",
        "interrupted by a shutdown",
    )


@pytest.mark.parametrize(
    ("kind", "attempts", "cancel", "state", "detail"),
    [
        ("echo", 1, False, "succeeded", None),
        ("echo", 2, False, "failed", "interrupted by a restart; started 2 of 2 times"),
        ("once", 1, False, "failed", "interrupted by a restart"),
        ("echo", 1, True, "cancelled", None),
    ],
)
def test_a_start_recovers_the_job_that_was_running(
    fresh: Bench, kind: str, attempts: int, cancel: bool, state: str, detail: str | None
) -> None:
    fresh.runner.stop()
    with fresh.database.write() as session:
        row = JobRow(
            id="job-cut",
            tenant="default",
            kind=kind,
            payload={},
            state="running",
            attempts=attempts,
            cancel_requested=cancel,
        )
        session.add(row)
    fresh.runner = fresh.make()
    fresh.runner.start()
    job = fresh.wait("job-cut", "succeeded", "failed", "cancelled")
    assert (job.state, job.problem and job.problem["detail"]) == (state, detail)


def test_an_observer_gets_only_what_is_newer(bench: Bench) -> None:
    job = bench.wait(bench.submit("echo"), "succeeded")
    assert bench.runner.newer(job.id, job.revision) is None
    newer = bench.runner.newer(job.id, job.revision - 1)
    assert newer is not None and newer.revision == job.revision


def test_the_worker_ends_when_its_runner_stops(fresh: Bench) -> None:
    fresh.wait(fresh.submit("echo"), "succeeded")
    (reaper,) = fresh.runner.idle_pids
    pids = [reaper, *descendants(reaper)]
    assert len(pids) == 2 and all(map(is_running, pids)) and os.getpid() not in pids
    fresh.runner.stop()
    assert not any(map(is_running, pids))


def test_a_worker_begins_what_was_accepted_before_any_worker_was_there(postgres: Postgres, tmp_path: Path) -> None:
    """Where some processes serve and others work."""
    database = Database(postgres.database())
    database.upgrade()
    serving, working = (
        DurableRunner(database, KINDS, tmp_path, RunnerOptions(QueueLimits(4, 4), works=works))
        for works in (False, True)
    )
    with database.write() as session:
        job_id = serving.submit(session, "echo", {}).id
    working.start()
    try:
        wait_until(lambda: (row := serving.get(job_id)) is not None and row.state == "succeeded")
    finally:
        working.stop()
        database.close()


def test_jobs_of_an_earlier_release_go_on(new_url: NewUrl, tmp_path: Path) -> None:
    """Which had a queue of its own beside them: what that held is not needed, nor read."""
    database = Database(new_url())
    with database.engine.begin() as connection:
        command.upgrade(_alembic(connection), "0011")
        insert = text(
            "INSERT INTO jobs (id, tenant, created_at, kind, state, payload, message, figures, cancel_requested, attempts, "
            "revision, worker, fence) VALUES (:id, 'lab', '2026-01-01', :kind, :state, '{}', '', '{}', :no, :attempts, 2, "
            ":worker, :attempts)"
        )
        for job, state, worker in (
            ("job-waiting", "queued", None),
            ("job-taken", "queued", "wrk-old"),
            ("job-running", "running", "wrk-old"),
            ("job-found", "running", "wrk-old"),
        ):
            values = {"id": job, "state": state, "worker": worker, "attempts": int(worker is not None), "no": False}
            connection.execute(insert, {**values, "kind": "trial" if job == "job-taken" else "echo"})
        connection.execute(
            text("INSERT INTO workers VALUES ('wrk-old', 'default', '2026-01-01', :machine, 1, 0, 7)"),
            {"machine": pid_scope()},
        )
    (tmp_path / "jobs.db").write_bytes(b"a queue of an earlier release")
    (tmp_path / "jobs" / "job-found").mkdir(parents=True)
    (tmp_path / "jobs" / "job-found" / "outcome.json").write_text('{"op":"done","result":{"found":"before"}}')
    database.upgrade()
    kinds = {"echo": kind("echo"), "trial": replace(kind("echo"), lane="measure")}
    runner = DurableRunner(database, kinds, tmp_path, RunnerOptions(QueueLimits(4, 4)))
    runner.start()

    def row(job_id: str) -> JobRow:
        found = runner.get(job_id)
        assert found is not None
        return found

    try:
        jobs = ("job-waiting", "job-taken", "job-running", "job-found")
        wait_until(lambda: all(row(job).state == "succeeded" for job in jobs))
        assert {job: row(job).attempts for job in jobs} == dict(zip(jobs, (1, 2, 2, 1), strict=True))
        assert row("job-found").result == {"found": "before"} and row("job-taken").lane == "measure"
    finally:
        runner.stop()
        database.close()
