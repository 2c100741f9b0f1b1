"""The real server: start, stop, crash and recovery."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from sqlalchemy import select

from autosbp.client import Client, Job
from autosbp.service.db import Database
from autosbp.service.jobs._processes import descendants
from autosbp.service.models import AuditRow
from tests.service import documents
from tests.service.jobs.test_runner import is_running
from tests.service.server import ROOT, START_S, Server

pytestmark = pytest.mark.integration


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TEST_GATE", str(tmp_path / "gate"))
    monkeypatch.setenv("TEST_URL", str(tmp_path / "url"))
    return tmp_path / "gate"


def start_search(client: Client) -> Job:
    """A search that is running behind the gate."""
    model, cluster = client.post_model(documents.graph()), client.post_cluster("local:2x2")
    job = client.search(model, cluster, options=documents.OPTIONS)
    deadline_s = time.monotonic() + START_S
    while client.get_job(job.id).message != "holding":
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    return job


def test_the_service_survives_kill_9_in_the_middle_of_a_job(tmp_path: Path, gate: Path) -> None:
    first = Server(tmp_path / "data", "tests.service.gated")
    with Client(first.url) as client:
        assert (tmp_path / "url").read_text() == first.url
        job = start_search(client)
        workers = descendants(first.pid)
        assert workers
        first.end(signal.SIGKILL)
        deadline_s = time.monotonic() + START_S
        while any(is_running(pid) for pid in workers):
            assert time.monotonic() < deadline_s, "the worker outlived its service"
            time.sleep(0.05)

        done: list[Job] = []
        waiting = threading.Thread(target=lambda: done.append(client.wait(job)))
        waiting.start()
        gate.touch()
        port = first.url.rpartition(":")[2]
        with Server(tmp_path / "data", "tests.service.gated", port=port) as second:
            assert second.url == first.url
            waiting.join(START_S)
            assert done and done[0].state == "succeeded"
            assert client.get_strategy(done[0].result["strategy_id"])["plan_id"] == done[0].result["strategy_id"]
            assert httpx.get(f"{second.url}/v1/jobs/{job.id}").json()["attempts"] == 2


def test_the_service_stops_at_a_signal_while_a_job_runs_and_is_followed(tmp_path: Path, gate: Path) -> None:
    server = Server(tmp_path / "data", "tests.service.gated")
    with Client(server.url) as client:
        job = start_search(client)
        workers = descendants(server.pid)
        with httpx.stream("GET", f"{server.url}/v1/jobs/{job.id}/events", timeout=20) as stream:
            assert stream.status_code == 200
            events = stream.iter_lines()
            assert next(line for line in events if line.startswith("event:")) == "event: progress"
            status, out = server.end(signal.SIGTERM)
            assert list(events), "the stream ends with the server"
    log = "".join(server.log)
    assert (status, out) == (-signal.SIGTERM, ""), log
    assert "Traceback" not in log
    assert not any(is_running(pid) for pid in workers)


def test_ctrl_c_ends_the_service_with_130_and_nothing_on_standard_output(tmp_path: Path) -> None:
    server = Server(tmp_path / "data")
    assert httpx.get(f"{server.url}/healthz").status_code == 200
    assert server.end(signal.SIGINT) == (130, "")


def test_the_service_refuses_a_data_folder_and_a_port_that_are_in_use(tmp_path: Path) -> None:
    with Server(tmp_path / "data") as server:
        port = server.url.rpartition(":")[2]
        other = Server(tmp_path / "data")
        assert other.end()[0] == 5
        assert "another service is using" in "".join(other.log)
        other = Server(tmp_path / "elsewhere", port=port)
        assert other.end()[0] == 5
        assert f"port {port}" in "".join(other.log)
        assert httpx.get(f"{server.url}/readyz").json()["status"] == "ok"


def test_a_large_body_is_answered_with_413_over_a_socket(tmp_path: Path) -> None:
    with Server(tmp_path / "data", max_body_bytes=100_000) as server:
        big = b'{"a": "' + b"x" * 300_000 + b'"}'
        for content in (big, iter([big[:1000], big[1000:]])):
            answer = httpx.post(
                f"{server.url}/v1/models", content=content, headers={"content-type": "application/json"}
            )
            assert answer.status_code == 413
            assert answer.headers["content-type"] == "application/problem+json"


def test_a_bind_that_others_can_reach_needs_a_key(tmp_path: Path) -> None:
    open_to_all = Server(tmp_path / "data", host="0.0.0.0")  # noqa: S104
    assert open_to_all.end()[0] == 5
    assert "autosbp keys create" in "".join(open_to_all.log)
    made = subprocess.run(
        [
            sys.executable,
            "-c",
            "from autosbp.cli import main; main()",
            "keys",
            "create",
            "--scopes=read,admin",
            "--data-dir",
            tmp_path / "data",
        ],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    with Server(tmp_path / "data", host="0.0.0.0") as server:  # noqa: S104
        assert httpx.get(f"{server.url}/v1/models").status_code == 401
        with Client(server.url, key=made.stdout.strip()) as client:
            assert list(client.models()) == []


@pytest.mark.parametrize(("proxies", "last"), [("", 429), ("127.0.0.0/8, 10.0.0.1", 401)])
@pytest.mark.some(2)
def test_only_a_trusted_proxy_says_where_a_request_is_from(tmp_path: Path, proxies: str, last: int) -> None:
    settings = {"require_keys": True, "wrong_keys_burst": 3, "trusted_proxies": proxies}
    with Server(tmp_path / "data", **settings) as server:
        answers = [
            httpx.get(
                f"{server.url}/v1/models", headers={"x-forwarded-for": f"203.0.113.{number}, 10.0.0.1"}
            ).status_code
            for number in range(6)
        ]
        assert (answers[0], answers[-1]) == (401, last)
    with closing(Database(f"sqlite:///{tmp_path / 'data' / 'autosbp.db'}")) as database, database.read() as session:
        noted = set(session.scalars(select(AuditRow.address)))
    assert noted == ({f"203.0.113.{number}" for number in range(6)} if proxies else {"127.0.0.1"})


def test_a_trusted_proxy_that_is_no_network_is_refused(tmp_path: Path) -> None:
    server = Server(tmp_path / "data", trusted_proxies="127.0.0.1,planner")
    assert server.end()[0] != 0
    assert "trusted_proxies" in "".join(server.log) and "'planner'" in "".join(server.log)


def test_the_service_imports_no_torch() -> None:
    check = "import sys, autosbp.service.app, autosbp.service.services.job_kinds; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", check], check=True, cwd=ROOT)


def test_the_service_listens_on_loopback_by_default(tmp_path: Path) -> None:
    with Server(tmp_path / "data") as server:
        port = int(server.url.rpartition(":")[2])
        with pytest.raises(OSError), socket.create_connection(("127.0.0.2", port), timeout=2):
            pass
