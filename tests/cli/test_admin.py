"""``admin``: backups beside a service that runs, restoring them where none does, erasing a tenant."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.cli.conftest import Run
from tests.service import documents
from tests.service.server import Server

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def own_mask() -> Iterator[None]:
    """Commands of the service close what they make to other users, for good; these run in the tests' process."""
    mask = os.umask(0o022)
    yield
    os.umask(mask)


def test_a_backup_of_a_service_that_runs_is_restored_elsewhere(run: Run, tmp_path: Path) -> None:
    there, other = ("--data-dir", tmp_path / "data"), ("--data-dir", tmp_path / "other")
    with Server(tmp_path / "data") as server:
        model = httpx.post(f"{server.url}/v1/models", json=documents.graph()).json()
        made = json.loads(run("admin", "backup", tmp_path / "b.tar", *there, "--json").stdout)
        assert (made["rows"]["models"], made["left_out"]) == (1, [])
        refused = run("admin", "restore", tmp_path / "b.tar", "--replace", *there)
        assert (refused.exit_code, "another service" in refused.stderr) == (5, True)
    refused = run("admin", "restore", tmp_path / "b.tar", *there)
    assert (refused.exit_code, "--replace" in refused.stderr) == (2, True)
    assert run("admin", "restore", tmp_path / "b.tar", *other).exit_code == 0
    with Server(tmp_path / "other") as server:
        assert httpx.get(f"{server.url}/v1/models/{model['id']}").json() == model
        assert httpx.get(f"{server.url}/readyz").status_code == 200


def test_a_tenant_is_erased_beside_a_service_that_runs(run: Run, tmp_path: Path) -> None:
    there = ("--data-dir", tmp_path)
    key = json.loads(
        run("keys", "create", "--tenant", "lab", "--scopes", "read,search,admin", *there, "--json").stdout
    )["secret"]
    with Server(tmp_path) as server:
        url, headers = f"{server.url}/v1/models", {"authorization": f"Bearer {key}"}
        assert httpx.post(url, json=documents.graph(), headers=headers).status_code == 201
        shown = json.loads(run("admin", "erase-tenant", "lab", "--dry-run", *there, "--json").stdout)
        assert (shown["erased"], shown["rows"]["models"], shown["rows"]["api_keys"]) == (False, 1, 1)
        assert httpx.get(url, headers=headers).status_code == 200
        done = json.loads(run("admin", "erase-tenant", "lab", *there, "--json").stdout)
        assert (done["erased"], done["files_left"]) == (True, 0)
        documents.wait_until(lambda: httpx.get(url, headers=headers).status_code == 401)
    again = run("admin", "erase-tenant", "lab", *there)
    assert (again.exit_code, "lab" in again.stderr) == (2, True)


def test_a_backup_of_nothing_is_refused(run: Run, tmp_path: Path) -> None:
    done = run("admin", "backup", tmp_path / "b.tar", "--data-dir", tmp_path / "none")
    assert (done.exit_code, "database" in done.stderr) == (2, True)
    assert not (tmp_path / "b.tar").exists()
