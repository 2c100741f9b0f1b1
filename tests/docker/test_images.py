"""The image and the composition: commands and settings that exist, nobody is root, and the health check tells the truth.

No image is built here: that needs an engine, and a network that serves the base images. ``scripts/image``, which CI runs, takes
the image's steps without one.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from psycopg import pq
from sqlalchemy import make_url

from autosbp.service.settings import Settings
from tests.cli.test_ci_documents import parse
from tests.docker.dockerfile import Stage, stages
from tests.service.server import Server

pytestmark = pytest.mark.integration

FOLDER = Path(__file__).parents[2] / "docker"
NOT_SETTINGS = {"PGPASSWORD", "HOME", "NUMBA_CACHE_DIR", "PYTHONDONTWRITEBYTECODE", "NCCL_TESTS_HOME"}


@pytest.fixture(scope="module")
def image() -> Stage:
    """The stage of the image that is kept."""
    return stages()[-1]


@pytest.fixture(scope="module")
def services() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]
    return found


def test_the_image_runs_as_a_user_who_owns_what_is_written(image: Stage) -> None:
    user = image.only("USER").text
    made = " ".join(step.text for step in image.all("RUN"))
    assert user.isdigit() and int(user) > 0
    assert f"--uid {user}" in made and "chown autosbp /data" in made
    order = [step.name for step in image.steps]
    assert order.index("USER") < order.index("CMD")


def test_every_variable_is_a_setting(image: Stage, services: dict[str, dict[str, Any]]) -> None:
    names = {name for step in image.all("ENV") for name in step.pairs}
    names |= {name for service in ("api", "worker") for name in services[service]["environment"]}
    known = {f"AUTOSBP_{name.upper()}" for name in Settings.model_fields}
    assert names - NOT_SETTINGS <= known


def test_the_program_knows_every_command(services: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    for name in ("api", "worker"):
        program, *arguments = services[name]["command"]
        assert program == ".venv/bin/autosbp"
        parse(arguments)
    program, *arguments = services["worker"]["healthcheck"]["test"][1:]
    assert (program, arguments) == (".venv/bin/autosbp", ["work", "--check"])  # what it says: tests/cli/test_remote.py
    parse(arguments)
    shown = re.findall(r"\.venv/bin/autosbp (.*)", (FOLDER / "compose.yaml").read_text())
    (keys,) = [line for line in shown if line.startswith("keys")]
    program = str(Path(sys.executable).with_name("autosbp"))
    made = [program, *shlex.split(keys), "--data-dir", str(tmp_path)]
    done = subprocess.run(made, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("asbp_")


@pytest.mark.parametrize("password", ["plain", "p@ss/w:o#r?d%41"])
def test_any_password_reaches_the_database(
    services: dict[str, dict[str, Any]], password: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rendered(name: str) -> dict[str, str]:
        found = services[name]["environment"]
        return {
            key: re.sub(r"\$\{DATABASE_PASSWORD:\?[^}]*\}", lambda _: password, text) for key, text in found.items()
        }

    for name in ("api", "worker"):
        environment = rendered(name)
        url = make_url(environment["AUTOSBP_DATABASE_URL"])
        assert (url.username, url.host, url.database) == ("autosbp", "database", "autosbp")
        monkeypatch.setenv("PGPASSWORD", environment["PGPASSWORD"])
        defaults = {each.keyword: each.val for each in pq.Conninfo.get_defaults()}
        assert (url.password or (defaults[b"password"] or b"").decode()) == password, "as libpq takes it"
    assert rendered("database")["POSTGRES_PASSWORD"] == password


def test_a_worker_has_gpus_where_it_is_asked_for_with_a_second_file(services: dict[str, dict[str, Any]]) -> None:
    added = yaml.safe_load((FOLDER / "compose.gpu.yaml").read_text())["services"]
    assert added.keys() == {"worker"} and not added["worker"].keys() & services["worker"].keys()
    (gpus,) = added["worker"]["deploy"]["resources"]["reservations"]["devices"]
    assert (gpus["driver"], gpus["count"], gpus["capabilities"]) == ("nvidia", "all", ["gpu"])


def test_containers_are_hardened(services: dict[str, dict[str, Any]]) -> None:
    for name, service in services.items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert "healthcheck" in service or "build" in service, name
    assert services["database"]["user"].split(":")[0].isdigit()
    # Nothing is reachable from other machines until somebody decides that.
    assert all(port.startswith("127.0.0.1:") for service in services.values() for port in service.get("ports", ()))


def test_every_run_step_is_one_that_a_shell_reads() -> None:
    for stage in stages():
        for step in stage.all("RUN"):
            done = subprocess.run(["sh", "-n", "-c", step.text], capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr


def test_the_health_check_tells_a_service_that_answers(image: Stage, tmp_path: Path) -> None:
    _, _, code = image.only("HEALTHCHECK").command
    with Server(tmp_path / "data") as server:
        port = server.url.rpartition(":")[2]
        checks = [code.replace(":8000/", f":{port}/"), code.replace(":8000/", ":1/")]
        statuses = [
            subprocess.run([sys.executable, "-c", check], capture_output=True, check=False).returncode
            for check in checks
        ]
    assert statuses == [0, 1]
