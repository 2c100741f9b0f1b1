"""A job's trace goes on from the request that asked for it, to its ranks, and across a death; off, nothing is kept or sent."""

from __future__ import annotations

import contextlib
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from autosbp.service.launchers._base import JobSpec
from autosbp.service.launchers._job_folder import JobFolder
from tests.service import documents
from tests.service.otlp import Receiver, Span
from tests.service.server import Server

pytestmark = pytest.mark.integration

ASKED = "0af7651916cd43dd8448eb211c80319c"
TRIED = "1bf7651916cd43dd8448eb211c80319c"


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    with Receiver() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")
        yield receiver


def client_of(server: Server) -> httpx.Client:
    return httpx.Client(base_url=server.url, timeout=60.0)


def of(trace_id: str) -> dict[str, str]:
    return {"traceparent": f"00-{trace_id}-b7ad6b7169203331-01"}


def search(client: httpx.Client) -> dict[str, Any]:
    """Post a search of the perceptron on two ranks of this machine; its job."""
    calibration = client.post("/v1/calibrations", json=documents.calibration("local:2")).json()
    asked = {
        "model_id": client.post("/v1/models", json=documents.graph()).json()["id"],
        "cluster_id": calibration["cluster_id"],
        "calibration_id": calibration["id"],
        "options": {**documents.OPTIONS, "time_limit_s": 1.0},
    }
    job: dict[str, Any] = client.post("/v1/searches", json=asked, headers=of(ASKED)).json()
    return job


def parents(tree: dict[str, Span]) -> dict[str, str]:
    """By name, the name of the span that each is below; "" for the one of the caller, which was not sent here."""
    names = {span.id: span.name for span in tree.values()}
    return {name: names.get(span.parent_id, "") for name, span in tree.items() if " http " not in name}


def test_a_trace_goes_from_the_request_through_its_job_and_process_to_the_ranks(
    tmp_path: Path, receiver: Receiver
) -> None:
    with Server(tmp_path, otel=True, launcher="local") as server, client_of(server) as client:
        found = documents.wait(client, search(client)["id"])
        assert found["state"] == "succeeded", found
        below = {
            "POST /v1/searches": "",
            "job search": "POST /v1/searches",
            "run": "job search",
            "prepare": "run",
            "task search": "run",
            "store": "job search",
        }
        assert parents(receiver.tree(ASKED, set(below))) == below
        asked = {"strategy_id": found["result"]["strategy_id"], "steps": 2, "warmup": 1}
        job = client.post("/v1/trials", json=asked, headers=of(TRIED)).json()
        assert documents.wait(client, job["id"])["state"] == "succeeded"
        below = {
            "POST /v1/trials": "",
            "job trial": "POST /v1/trials",
            "run": "job trial",
            "prepare": "run",
            "task trial": "run",
            "ranks autosbp.executor.trial_worker": "task trial",
            "launcher submit": "ranks autosbp.executor.trial_worker",
            "launcher wait": "ranks autosbp.executor.trial_worker",
            "store": "job trial",
            "feedback": "store",
        }
        tree = receiver.tree(TRIED, set(below))
        assert parents(tree) == below
        assert tree["job trial"].attributes["autosbp.job"] == job["id"]
        folder = JobFolder(tmp_path / "launches", f"{job['id']}-1")
        assert folder.spec.env["TRACEPARENT"] == f"00-{TRIED}-{tree['launcher submit'].id}-01"


def found_at(module: str, trace_id: str) -> list[str]:
    """Ids of the spans of a trace that processes of a module have in their environment now."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if module.encode() in (folder / "cmdline").read_bytes().split(b"\0"):
                given = (folder / "environ").read_bytes().split(b"\0")
                start = f"TRACEPARENT=00-{trace_id}-".encode()
                found += [each.decode().split("-")[2] for each in given if each.startswith(start)]
    return found


@pytest.mark.long
def test_ranks_that_end_with_the_service_have_the_trace_of_their_task(tmp_path: Path, receiver: Receiver) -> None:
    with Server(tmp_path, otel=True) as server, client_of(server) as client:
        found = documents.wait(client, search(client)["id"])
        asked = {"strategy_id": found["result"]["strategy_id"], "steps": 2, "warmup": 1}
        job = client.post("/v1/trials", json=asked, headers=of(TRIED)).json()
        seen: list[str] = []
        documents.wait_until(lambda: bool(seen.extend(found_at("autosbp.launch.fork_server", TRIED)) or seen))
        assert documents.wait(client, job["id"])["state"] == "succeeded"
        assert set(seen) == {receiver.tree(TRIED, {"task trial"})["task trial"].id}


def test_work_that_a_death_cut_off_goes_on_in_its_trace_linked_to_what_was_cut_off(
    tmp_path: Path, receiver: Receiver
) -> None:
    dying = Server(tmp_path, otel=True, testing=True, crash_at="search:started")
    with client_of(dying) as client, contextlib.suppress(httpx.TransportError):
        search(client)
    assert dying.end()[0] == -signal.SIGKILL
    with contextlib.closing(sqlite3.connect(tmp_path / "autosbp.db")) as database:
        ((trace,),) = database.execute("SELECT json_extract(trace, '$.run') FROM jobs").fetchall()
    with Server(tmp_path, otel=True) as server, client_of(server) as client:
        (job,) = client.get("/v1/jobs").json()["items"]
        assert documents.wait(client, job["id"])["attempts"] == 2
        tree = receiver.tree(ASKED, {"job search", "run", "store"})
        run = tree["run"].id  # the task's own may come beside that of the process whose service died
        documents.wait_until(lambda: ("task search", run) in [(span.name, span.parent_id) for span in receiver.spans])
    assert tree["job search"].links == ((ASKED, trace.split("-")[2]),)


def test_nothing_is_kept_or_sent_where_it_was_not_asked_for(tmp_path: Path, receiver: Receiver) -> None:
    with Server(tmp_path) as server, client_of(server) as client:
        assert documents.wait(client, search(client)["id"])["state"] == "succeeded"
        with contextlib.closing(sqlite3.connect(tmp_path / "autosbp.db")) as database:
            assert database.execute("SELECT trace FROM jobs").fetchall() == [(None,)]
    assert receiver.spans == []


def test_a_trace_is_no_part_of_the_work_that_a_key_names(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path, "key")
    for span in ("b7ad6b7169203331", "c7ad6b7169203331"):
        env = {"TRACEPARENT": f"00-{ASKED}-{span}-01"}
        folder.prepare(JobSpec("autosbp.service.launchers.probe_entry", (), tmp_path / "log", 1.0, env=env))
    assert folder.spec.env["TRACEPARENT"].split("-")[2] == "b7ad6b7169203331"
    with pytest.raises(Exception, match="another spec"):
        folder.prepare(JobSpec("autosbp.service.launchers.probe_entry", (), tmp_path / "log", 1.0, env={"OTHER": "1"}))
