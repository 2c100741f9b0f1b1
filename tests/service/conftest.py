"""Fixtures: settings in a temporary folder, and the service in the test's own process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from service.app import create_app
from service.jobs._base import Kinds
from service.settings import Settings
from tests.service import documents

Start = Callable[..., AbstractContextManager[TestClient]]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path / "data", cancel_grace_s=1.0)


@contextmanager
def running(settings: Settings, kinds: Kinds | None = None) -> Iterator[TestClient]:
    app = create_app(settings, kinds)
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


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
