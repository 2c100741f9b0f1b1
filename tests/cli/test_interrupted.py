"""Commands that are ended while a service works for them: the real service, real processes and signals."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self

import httpx
import pytest

from autosbp.client import Client, Job
from tests.cli.conftest import Run
from tests.cli.processes import Started
from tests.service.server import Server

pytestmark = pytest.mark.integration

LONG = ("--steps", 10_000, "--wait")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with Server(tmp_path_factory.mktemp("service")) as server:
        yield server.url


@pytest.fixture(scope="module")
def strategy(run: Run, folder: Path, server: str) -> str:
    asked = ("--cluster", "local:2", "--global-batch", 64, "--server", server)
    done = run("plan", folder / "graph.json", *asked)
    assert done.exit_code == 0, done.stderr
    return next(line for line in done.stdout.splitlines() if line.startswith("plan-")).partition(":")[0]


class Gateway(ThreadingHTTPServer):
    """In front of a service. ``held`` is set when the answer to the first POST to ``path`` is there, which is kept back; from
    ``closed`` on every answer is 502."""

    daemon_threads = True

    def __init__(self, server: str, path: str = "") -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.server, self.path = server, path
        self.held, self.closed, self.ended = threading.Event(), threading.Event(), threading.Event()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self._thread = threading.Thread(target=self.serve_forever)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.ended.set()
        self.shutdown()
        self._thread.join(30)
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: Gateway

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"] or 0))
        if self.server.closed.is_set():
            return self._answer(httpx.Response(502, text="<html>Bad Gateway</html>"))
        headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
        answer = httpx.request(self.command, self.server.server + self.path, content=body, headers=headers, timeout=60)
        if self.path == self.server.path and not self.server.held.is_set():
            self.server.held.set()
            self.server.ended.wait(60)
            return None
        return self._answer(answer)

    def do_GET(self) -> None:
        self.headers["content-length"] = self.headers["content-length"] or "0"
        self.do_POST()

    def _answer(self, answer: httpx.Response) -> None:
        self.send_response(answer.status_code)
        self.send_header("content-type", answer.headers.get("content-type", "text/plain"))
        self.send_header("content-length", str(len(answer.content)))
        self.end_headers()
        self.wfile.write(answer.content)

    def log_message(self, *_: object) -> None:
        """Not on standard error."""


def newest(server: str, kind: str) -> Job:
    with Client(server) as client:
        return next(client.jobs(kind=kind, limit=1))  # type: ignore[arg-type]


def ended(server: str, job: Job) -> str:
    """The state in which a job has ended; it is not waited for longer than a cancelled one takes."""
    with Client(server) as client:
        begun_s = time.monotonic()
        while not job.is_final:
            assert time.monotonic() - begun_s < 20, job
            time.sleep(0.1)
            job = client.get_job(job.id)
        return job.state


@pytest.mark.some(2)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_a_trial_that_is_waited_for_is_cancelled_by_a_signal(
    server: str, strategy: str, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    with Started("trial", strategy, "--server", server, *LONG, cwd=tmp_path) as command:
        command.wait_for(lambda line: " running" in line or " queued" in line)
        assert command.end(number)[0] == code
    job = newest(server, "trial")
    assert ended(server, job) == "cancelled"
    assert f"cancelled trial {job.id}\n" in command.lines


def test_a_trial_whose_submission_was_not_answered_yet_is_cancelled(server: str, strategy: str, tmp_path: Path) -> None:
    with Client(server) as client:
        before = [each.id for each in client.jobs(kind="trial")]
    with Gateway(server, "/v1/trials") as gateway:
        with Started("trial", strategy, "--server", gateway.url, *LONG, cwd=tmp_path) as command:
            assert gateway.held.wait(60)
            assert command.end(signal.SIGTERM)[0] == 143
        job = newest(server, "trial")
        assert ended(server, job) == "cancelled"
    with Client(server) as client:
        assert [each.id for each in client.jobs(kind="trial")] == [job.id, *before], "sent twice, done once"


@pytest.mark.some(2)
@pytest.mark.parametrize("kind", ["search", "calibrate"])
def test_other_work_of_a_service_is_cancelled_by_a_signal(server: str, tmp_path: Path, kind: str) -> None:
    asked = {
        "search": ("plan", "zoo:gpt2-1.5b", "--cluster", "dgx-a100-80g:8", "--time-limit", 60),
        "calibrate": ("calibrate", "--cluster", "local:2", "-o", tmp_path / "c.json"),
    }[kind]
    with Started(*asked, "--server", server, cwd=tmp_path) as command:
        command.wait_for(lambda line: line.startswith(f"{kind} "))
        assert command.end(signal.SIGTERM)[0] == 143
    assert ended(server, newest(server, kind)) == "cancelled"


def test_a_trial_that_cannot_be_cancelled_is_reported_as_still_running(
    run: Run, server: str, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autosbp.cli._remote._MAX_UNREACHABLE_S", 0.5)
    with Gateway(server) as gateway, Client(server) as client:
        monkeypatch.setattr(Client, "trial_log", lambda *_: gateway.closed.set() or "")
        done = run("trial", strategy, "--server", gateway.url, *LONG)
        job = newest(server, "trial")
        assert done.exit_code == 5, done.stderr
        assert f"warning: could not cancel trial {job.id}, which may still be running" in done.stderr
        client.cancel(job.id)
        assert ended(server, job) == "cancelled"


def test_a_trial_that_is_late_is_cancelled(run: Run, server: str, strategy: str) -> None:
    done = run("trial", strategy, "--server", server, *LONG, "--timeout", 0.5)
    assert (done.exit_code, "has not ended after 0.5 s" in done.stderr) == (4, True), done.stderr
    assert ended(server, newest(server, "trial")) == "cancelled"
