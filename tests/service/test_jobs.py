"""/v1/jobs over HTTP."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from autosbp.service.jobs._base import JobKind
from autosbp.service.services import keys
from autosbp.service.settings import Settings
from tests.service import documents
from tests.service.conftest import running, state_of

pytestmark = pytest.mark.integration


@pytest.fixture
def held(settings: Settings, tmp_path: Path) -> Iterator[TestClient]:
    """A service whose captures wait for a gate."""
    gate = {"gate": str(tmp_path / "gate")}
    holding = JobKind("tests.service.tasks:hold", lambda _, __: gate, lambda _, __, found: found, True)
    with running(settings, {"capture": holding}) as client:
        yield client


def submit(client: TestClient) -> str:
    job_id: str = client.post("/v1/models:capture", json={"hf_config": {"model_type": "gpt2"}}).json()["id"]
    return job_id


def events(text: str) -> list[tuple[int, str, dict[str, Any]]]:
    """(id, event, data) of every event of a stream."""
    found = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if "id" in fields:
            found.append((int(fields["id"]), fields["event"], json.loads(fields["data"])))
    return found


def test_a_running_job_is_cancelled_over_http(held: TestClient) -> None:
    job_id = submit(held)
    documents.wait(held, job_id, ("running",))
    answer = held.post(f"/v1/jobs/{job_id}:cancel")
    assert (answer.status_code, answer.json()["cancel_requested"]) == (200, True)
    job = documents.wait(held, job_id)
    assert (job["state"], job["result"], job["problem"]) == ("cancelled", None, None)
    assert held.post(f"/v1/jobs/{job_id}:cancel").status_code == 200


def test_cancelling_a_finished_job_is_409(held: TestClient, tmp_path: Path) -> None:
    (tmp_path / "gate").touch()
    job_id = submit(held)
    documents.wait(held, job_id)
    answer = held.post(f"/v1/jobs/{job_id}:cancel")
    assert (answer.status_code, answer.json()["type"]) == (409, "urn:autosbp:problem:conflict")


def test_jobs_are_listed_by_state_and_kind(held: TestClient, tmp_path: Path) -> None:
    running_id, queued_id = submit(held), submit(held)
    documents.wait(held, running_id, ("running",))

    def listed(**query: str) -> list[str]:
        return [item["id"] for item in held.get("/v1/jobs", params=query).json()["items"]]

    assert listed() == [queued_id, running_id]
    assert listed(state="queued") == [queued_id]
    assert listed(state="running", kind="capture") == [running_id]
    assert listed(kind="search") == []
    (tmp_path / "gate").touch()


def test_a_job_is_followed_to_its_end(held: TestClient, tmp_path: Path) -> None:
    job_id = submit(held)
    documents.wait(held, job_id, ("running",))
    timer = threading.Timer(0.5, (tmp_path / "gate").touch)
    timer.start()
    answer = held.get(f"/v1/jobs/{job_id}/events")
    timer.join()
    assert answer.headers["content-type"].startswith("text/event-stream")
    found = events(answer.text)
    numbers = [number for number, _, _ in found]
    assert numbers == sorted(set(numbers))
    assert [name for _, name, _ in found] == ["progress"] * (len(found) - 1) + ["end"]
    assert found[-1][2] == held.get(f"/v1/jobs/{job_id}").json()
    assert found[-1][2]["state"] == "succeeded"

    resumed = held.get(f"/v1/jobs/{job_id}/events", headers={"last-event-id": str(numbers[-1] - 1)})
    assert events(resumed.text) == [found[-1]]
    known = held.get(f"/v1/jobs/{job_id}/events", headers={"last-event-id": str(numbers[-1])})
    assert (known.status_code, known.content) == (204, b"")


def test_an_event_id_that_the_job_has_not_come_to_counts_as_none(held: TestClient, tmp_path: Path) -> None:
    job_id = submit(held)
    documents.wait(held, job_id, ("running",))
    ahead = {"last-event-id": "1000000"}
    timer = threading.Timer(0.5, (tmp_path / "gate").touch)
    timer.start()
    for _ in range(2):  # while it runs, and when it has ended
        answer = held.get(f"/v1/jobs/{job_id}/events", headers=ahead)
        assert answer.status_code == 200 and events(answer.text)[-1][1] == "end"
    timer.join()


@pytest.mark.parametrize("way", ["revoked", "expired", "first"])
def test_a_stream_ends_with_what_let_its_caller_in(held: TestClient, way: str) -> None:
    """Its key, which another process revokes, or which expires; or that there was no key yet."""
    database = state_of(held).database.of("default")
    job_id = submit(held)
    documents.wait(held, job_id, ("running",))
    headers = {}
    if way != "first":
        key = keys.create(database, "test", ["read"], timedelta(seconds=0.7) if way == "expired" else None)
        headers = {"authorization": f"Bearer {key.text}"}
    begun_s = time.monotonic()

    def end() -> None:
        if way == "revoked":
            keys.revoke(database, key.row.id)
        elif way == "first":
            keys.create(database, "test", ["read"])

    timer = threading.Timer(0.7, end)
    timer.start()
    answer = held.get(f"/v1/jobs/{job_id}/events", headers=headers)
    timer.join()
    assert 0.5 < time.monotonic() - begun_s < 4
    assert {name for _, name, _ in events(answer.text)} == {"progress"}
    assert answer.text.endswith(": the API key of this stream is no longer valid, or an API key is now required\n\n")
    assert held.get(f"/v1/jobs/{job_id}/events", headers=headers).status_code == 401


def test_a_bad_last_event_id_is_422(held: TestClient, tmp_path: Path) -> None:
    (tmp_path / "gate").touch()
    job_id = submit(held)
    answer = held.get(f"/v1/jobs/{job_id}/events", headers={"last-event-id": "x"})
    assert (answer.status_code, answer.json()["field"]) == (422, "last-event-id")
