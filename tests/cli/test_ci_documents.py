"""The workflows that docs/ci has to copy: their syntax, and that the program knows each of their commands."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from autosbp.cli import app
from autosbp.client import Client
from autosbp.errors import ServiceError
from tests.cli.processes import COMMAND, environment
from tests.service.server import Server

pytestmark = pytest.mark.integration

FOLDER = Path(__file__).parents[2] / "docs"
SCRIPTS = {
    "github.yml": lambda document: [
        step["run"] for job in document["jobs"].values() for step in job["steps"] if "run" in step
    ],
    "gitlab.yml": lambda document: [
        line for job in document.values() for part in ("before_script", "script") for line in job[part]
    ],
}


def document(name: str) -> dict[str, Any]:
    read: dict[str, Any] = yaml.load((FOLDER / "ci" / name).read_text(), yaml.BaseLoader)  # noqa: S506  # "on" stays text
    return read


def commands(script: str) -> list[list[str]]:
    """The arguments of every autosbp command of a shell script."""
    lines = script.replace("\\\n", " ").splitlines()
    stripped = [line.strip().removeprefix("exec ") for line in lines]
    return [shlex.split(line, comments=True)[1:] for line in stripped if line.startswith("autosbp ")]


def parse(arguments: list[str]) -> dict[str, Any]:
    """As the program does, without running it; an error of use fails the test."""
    program = typer.main.get_command(app)
    assert isinstance(program, typer.core.TyperGroup)
    with program.commands[arguments[0]].make_context(arguments[0], arguments[1:]) as context:
        parameters: dict[str, Any] = context.params
        return parameters


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_program_knows_every_command_of_a_workflow(name: str) -> None:
    scripts = SCRIPTS[name](document(name))
    found = [arguments for script in scripts for arguments in commands(script)]
    assert [arguments[0] for arguments in found] == ["plan", "trial"]
    asked = parse(found[1])
    assert asked["wait"] and asked["server"].startswith("$")
    assert (asked["max_step_time"], asked["max_regression"]) == (0.25, "5%")
    assert asked["junit"] and asked["report"]
    assert parse(found[0])["output"] == Path(asked["plan"])


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_of_a_workflow_are_shell(name: str) -> None:
    for script in SCRIPTS[name](document(name)):
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)


class Runner:
    """Runs a workflow's shell steps as CI does, on a branch that is called as its folder. That has programs of its own:
    ``autosbp`` is this one, what installs is only written down."""

    def __init__(self, folder: Path, server: str) -> None:
        programs = folder / "bin"
        programs.mkdir()
        for name in ("pip", "apt-get"):
            write_program(programs / name, f'echo "{name}|$(IFS="|"; echo "$*")" >> "{folder}/installed"')
        write_program(programs / "autosbp", f'exec {shlex.join(COMMAND)} "$@"')
        self.folder = folder
        self.environment = environment(
            PATH=f"{programs}:{os.environ['PATH']}",
            **{"AUTOSBP_SERVER": server, "AUTOSBP_REPOSITORY": "https://there/autosbp@v1", "MODEL": "zoo:mlp-small"},
            **{"CLUSTER": "local:2", "GITHUB_STEP_SUMMARY": str(folder / "summary.md"), "GITHUB_REF_NAME": folder.name},
        )

    def start(self, script: str) -> subprocess.Popen[str]:
        (self.folder / "step.sh").write_text(script)
        return subprocess.Popen(
            ["bash", "-e", "step.sh"], cwd=self.folder, env=self.environment, stderr=subprocess.PIPE, text=True
        )

    def run(self, script: str) -> None:
        with self.start(script) as step:
            _, log = step.communicate(timeout=120)
        assert step.returncode == 0, log


def write_program(path: Path, text: str) -> None:
    path.write_text(f"#!/usr/bin/env bash\n{text}\n")
    path.chmod(0o755)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with Server(tmp_path_factory.mktemp("service")) as server:
        yield server.url


@pytest.mark.some(2)
@pytest.mark.parametrize("name", SCRIPTS)
def test_the_steps_of_a_workflow_run(name: str, server: str, tmp_path: Path) -> None:
    """With another model and cluster, which are its variables."""
    runner = Runner(tmp_path, server)
    for script in SCRIPTS[name](document(name)):
        runner.run(script)
    report = json.loads((tmp_path / "step-time.json").read_text())
    assert report["label"] == tmp_path.name and all(gate["passed"] for gate in report["gates"].values())
    assert (tmp_path / "step-time.xml").exists()
    installed = (tmp_path / "installed").read_text().splitlines()
    assert installed[-1].endswith("|autosbp @ git+https://there/autosbp@v1")
    (tmp_path / "installed").unlink()
    runner.environment.pop("AUTOSBP_REPOSITORY")
    with runner.start(next(script for script in SCRIPTS[name](document(name)) if "pip" in script)) as step:
        _, log = step.communicate(timeout=60)
    assert step.returncode != 0 and "AUTOSBP_REPOSITORY: set this variable" in log, "nothing is installed from nowhere"


@pytest.mark.some(2)
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_step_that_is_cancelled_cancels_its_trial(name: str, server: str, tmp_path: Path) -> None:
    """Who cancels a job of CI signals the shell of its step, and no other process."""
    runner = Runner(tmp_path, server)
    plan, trial = SCRIPTS[name](document(name))[-2:]
    runner.run(plan)
    with runner.start(trial.replace(" --wait", " --wait --steps 10000")) as step:
        assert step.stderr is not None
        for line in step.stderr:
            if line.startswith("trial tri-"):
                break
        step.send_signal(signal.SIGTERM)
        _, log = step.communicate(timeout=60)
    assert step.returncode == 143
    found = re.search(r"cancelled trial (job-\w+)", log)
    assert found is not None, log
    with Client(server) as client, pytest.raises(ServiceError, match="was cancelled"):
        client.wait(client.get_job(found[1]), timeout_s=30)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_workflow_lists_the_variables_that_its_steps_read(name: str) -> None:
    text = (FOLDER / "ci" / name).read_text()
    head = text[: text.index("\nname:" if name == "github.yml" else "\nstep-time:")]
    assert set(re.findall(r"AUTOSBP_[A-Z_]+", text)) == set(re.findall(r"AUTOSBP_[A-Z_]+", head))
    assert all("${{" not in script for script in SCRIPTS[name](document(name)))


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_workflow_has_its_key_from_the_environment_alone(name: str) -> None:
    text = (FOLDER / "ci" / name).read_text()
    assert "AUTOSBP_API_KEY" in text and "asbp_" not in text
    assert all("API_KEY" not in script for script in SCRIPTS[name](document(name)))


def test_the_workflow_of_github_has_what_a_workflow_needs() -> None:
    workflow = document("github.yml")
    assert {"name", "on", "permissions", "jobs"} <= set(workflow)
    for job in workflow["jobs"].values():
        assert {"runs-on", "steps", "timeout-minutes"} <= set(job)
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step)
            assert "@" in step.get("uses", "@")


def test_the_job_of_gitlab_publishes_its_reports_also_when_it_fails() -> None:
    (job,) = document("gitlab.yml").values()
    assert job["artifacts"]["when"] == "always"
    (trial,) = [line for line in job["script"] if " trial " in line]
    assert parse(commands(trial)[0])["junit"] == Path(job["artifacts"]["reports"]["junit"])


def test_commands_of_the_page_are_known_to_the_program() -> None:
    found = commands((FOLDER / "how-to" / "ci.md").read_text())
    assert [arguments[0] for arguments in found] == ["plan", "trial"]
    for arguments in found:
        parse(arguments)
