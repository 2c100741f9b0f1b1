"""A search that is posted with its model's capture: the service queues it with the model, whoever still looks."""

from __future__ import annotations

import signal
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from starlette.testclient import TestClient

from autosbp.client import Client
from autosbp.service.db import Database
from autosbp.service.models import ClusterRow, JobRow, ModelRow, SearchRow
from autosbp.service.services import models
from autosbp.service.settings import Settings
from tests.service import documents, onnx_files
from tests.service.server import Server

pytestmark = pytest.mark.integration

TENANT = "acme"


def posted(client: TestClient, **search: Any) -> Any:
    asked = {"cluster_id": client.post("/v1/clusters", json={"preset": "local:2"}).json()["id"], **search}
    onnx = b64encode(onnx_files.good()).decode()
    return client.post("/v1/models:capture", json={"onnx": onnx, "name": "perceptron", "search": asked})


def test_a_capture_is_followed_by_the_search_that_was_posted_with_it(shared: TestClient) -> None:
    answer = posted(shared, options=documents.OPTIONS, num_points=2)
    assert answer.status_code == 202, answer.text
    done = documents.wait(shared, answer.json()["id"])
    assert done["state"] == "succeeded", done
    found = done["result"]
    assert shared.get(f"/v1/models/{found['model_id']}").json()["name"] == "perceptron"
    search = shared.get(f"/v1/searches/{found['search_id']}").json()
    assert (search["model_id"], search["num_points"]) == (found["model_id"], 2)
    assert search["options"]["global_batch"] == 8 and search["job"]["id"] == found["search_job_id"]
    assert documents.wait(shared, found["search_job_id"])["state"] == "succeeded"
    again = documents.wait(shared, posted(shared, options=documents.OPTIONS, num_points=2).json()["id"])
    assert again["result"] == found  # an equal search is not repeated


def test_a_refused_search_is_the_outcome_that_everybody_sees_and_the_model_is_kept(shared: TestClient) -> None:
    done = documents.wait(shared, posted(shared, options={"memory_limit_bytes": 100}).json()["id"])
    assert done["state"] == "succeeded" and "search_id" not in done["result"]
    problem = done["result"]["search_problem"]
    assert (problem["type"], problem["constraint"]) == ("urn:autosbp:problem:infeasible", "memory_limit_bytes")
    model = done["result"]["model_id"]
    assert shared.get(f"/v1/models/{model}").status_code == 200
    page = shared.get(f"/plan/captures/{done['id']}").text
    assert "at least" in page and "Memory limit of a device 100 B" in page and f"/models/{model}" in page
    assert "search refused" in shared.get("/jobs").text and "hx-get" not in page
    form = shared.get(f"/plan?capture_id={done['id']}").text
    assert f'<option value="{model}" selected>' in form and 'role="alert"' in form


@pytest.mark.parametrize(
    ("search", "field"),
    [
        ({"cluster_id": "clu-none"}, "search.cluster_id"),
        ({"calibration_id": "cal-none"}, "search.calibration_id"),
        ({"start_id": "plan-none"}, "search.start_id"),
        ({"options": {"global_batch": 0}}, "search.options.global_batch"),
        ({"options": {"time_limit_s": 1e5}}, "search.options.time_limit_s"),
        ({"model_id": "mod-1"}, "search.model_id"),
        ({"num_points": 1}, "search.num_points"),
    ],
)
def test_a_bad_search_is_refused_before_anything_is_captured(
    shared: TestClient, search: dict[str, Any], field: str
) -> None:
    before = shared.get("/v1/jobs").json()
    answer = posted(shared, **search)
    assert (answer.status_code, answer.json()["field"]) == (422, field), answer.text
    assert shared.get("/v1/jobs").json() == before


@contextmanager
def captured(database: Database, settings: Settings) -> Iterator[tuple[Any, JobRow]]:
    """A tenant's session that stores a capture's graph, and the job."""
    own = database.of(TENANT)
    with own.write() as session:
        cluster = documents.cluster()
        session.add(ClusterRow(id="clu-1", name="c", cluster_hash="h", num_devices=4, document=cluster))
        search = {"cluster_id": "clu-1", "options": documents.OPTIONS}
        session.add(JobRow(id="job-1", kind="capture", state="running", payload={"onnx": {}, "search": search}))
    with own.write() as session:
        job = session.get_one(JobRow, ("job-1", TENANT))
        yield session, job


def stored(database: Database) -> dict[str, list[Any]]:
    """Tenants and ids of what there is, over all tenants."""
    with database.read() as session:
        return {
            kind.__tablename__: [(row.tenant, row.id) for row in session.scalars(select(kind))]
            for kind in (ModelRow, SearchRow, JobRow)
        }


def test_model_search_and_its_job_are_stored_together_or_not_at_all(database: Database, settings: Settings) -> None:
    with pytest.raises(RuntimeError), captured(database, settings) as (session, job):
        models.store_capture(settings, session, job, documents.graph())
        session.flush()
        raise RuntimeError("killed")
    assert stored(database) == {"models": [], "searches": [], "jobs": [(TENANT, "job-1")]}
    with database.of(TENANT).write() as session:
        job = session.get_one(JobRow, ("job-1", TENANT))
        result = models.store_capture(settings, session, job, documents.graph())
    found = stored(database)
    assert found["searches"] == [(TENANT, result["search_id"])] and found["models"] == [(TENANT, result["model_id"])]
    assert sorted(found["jobs"]) == sorted([(TENANT, "job-1"), (TENANT, result["search_job_id"])])


def test_a_full_queue_refuses_the_search_and_not_the_model(database: Database, settings: Settings) -> None:
    few = settings.model_copy(update={"max_queued_jobs_of_tenant": 1})
    with captured(database, few) as (session, job):
        session.add(JobRow(id="job-2", kind="search", state="queued", payload={}, expected_s=1.0))
        session.flush()
        result = models.store_capture(few, session, job, documents.graph())
    assert result["search_problem"]["type"] == "urn:autosbp:problem:queue-full"
    found = stored(database)
    assert (found["models"], found["searches"]) == ([(TENANT, result["model_id"])], [])


def test_a_service_that_is_killed_with_a_captured_model_searches_it_after_its_restart(tmp_path: Path) -> None:
    with Server(tmp_path, crash_at="capture:ended", testing=1) as server:
        with Client(server.url) as client:
            cluster = client.post_cluster("local:2")
            search = {"cluster_id": cluster, "options": documents.OPTIONS}
            job = client.capture(onnx=onnx_files.good(), name="perceptron", search=search)
        status, _ = server.end()
        assert status == -signal.SIGKILL
    with Server(tmp_path) as server, Client(server.url) as client:
        found = client.wait(job).result
        assert client.wait(client.get_job(found["search_job_id"])).result["search_id"] == found["search_id"]
        assert [each["id"] for each in client.searches()] == [found["search_id"]]
