"""Fixtures: settings in a temporary folder, and the service in the test's own process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from autosbp.service.app import create_app
from autosbp.service.db import Database
from autosbp.service.jobs._base import Kinds
from autosbp.service.models import Base
from autosbp.service.request_state import AppState
from autosbp.service.settings import Settings
from tests.service import documents
from tests.service.postgres import Postgres, programs

Start = Callable[..., AbstractContextManager[TestClient]]
NewUrl = Callable[[], str]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path / "data", cancel_grace_s=1.0)


def state_of(client: TestClient) -> AppState:
    """What the client's service shares."""
    app = client.app
    assert isinstance(app, FastAPI)
    found: AppState = app.state.service
    return found


@contextmanager
def running(settings: Settings, kinds: Kinds | None = None) -> Iterator[TestClient]:
    client = TestClient(create_app(settings, kinds), "http://localhost", raise_server_exceptions=False)
    with client:
        yield client


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL server of the tests' own; the development extra brings its programs."""
    with Postgres(programs()) as server:
        yield server


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def new_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> NewUrl:
    """Makes URLs of empty databases."""
    if request.param == "sqlite":
        return lambda: f"sqlite:///{tmp_path_factory.mktemp('store') / 'test.db'}"
    server: Postgres = request.getfixturevalue("postgres")
    return server.database


@pytest.fixture(scope="module")
def shared_database(new_url: NewUrl) -> Iterator[Database]:
    database = Database(new_url())
    database.upgrade()
    yield database
    database.close()


@pytest.fixture
def database(shared_database: Database) -> Iterator[Database]:
    """Of the newest schema, and empty."""
    with shared_database.write() as session:
        for table in reversed(Base.metadata.sorted_tables):
            session.execute(table.delete())
    yield shared_database


@pytest.fixture
def client(settings: Settings) -> Iterator[TestClient]:
    """A fresh service that nothing was posted to."""
    with running(settings) as client:
        yield client


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """One service per test module, whose worker stays warm."""
    with running(Settings(data_dir=tmp_path_factory.mktemp("shared"), cancel_grace_s=1.0)) as client:
        yield client


@pytest.fixture
def ids(shared: TestClient) -> dict[str, Any]:
    """Ids of a stored model, cluster and calibration."""
    calibration = shared.post("/v1/calibrations", json=documents.calibration()).json()
    return {
        "model_id": shared.post("/v1/models", json=documents.graph()).json()["id"],
        "cluster_id": calibration["cluster_id"],
        "calibration_id": calibration["id"],
    }
