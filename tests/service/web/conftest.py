"""A service with a strategy of the perceptron on two ranks of this machine, and what came before it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from starlette.testclient import TestClient

from autosbp.service.settings import Settings
from tests.service import documents
from tests.service.conftest import running

HTML = {"accept": "text/html"}
FORM = {"origin": "http://localhost"}
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"
"""The name of the stored model and of its cluster."""


@dataclass(frozen=True)
class Stored:
    """Ids of what the service has."""

    client: TestClient
    model: str
    cluster: str
    calibration: str
    search: str
    strategy: str
    job: str


@pytest.fixture(scope="package")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stored]:
    with running(Settings(data_dir=tmp_path_factory.mktemp("pages"), cancel_grace_s=1.0)) as client:
        client.headers["accept"] = "text/html"
        yield fill(client)


def fill(client: TestClient) -> Stored:
    """Post a model and a calibration, and search."""
    measured = documents.calibration("local:2")
    measured["cluster"]["name"] = HOSTILE
    calibration = client.post("/v1/calibrations", json=measured).json()
    asked = {
        "model_id": client.post("/v1/models", json={**documents.graph(), "name": HOSTILE}).json()["id"],
        "cluster_id": calibration["cluster_id"],
        "calibration_id": calibration["id"],
        "options": documents.OPTIONS,
    }
    posted = client.post("/v1/searches", json=asked).json()
    job = documents.wait(client, posted["id"])
    assert job["state"] == "succeeded", job
    found = job["result"]["search_id"], job["result"]["strategy_id"]
    return Stored(client, asked["model_id"], asked["cluster_id"], calibration["id"], *found, job["id"])
