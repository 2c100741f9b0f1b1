"""The workflows that docs/ci has to copy: their syntax, and that the program knows each of their commands."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from autosbp.cli import app

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
    return [shlex.split(line, comments=True)[1:] for line in lines if line.strip().startswith("autosbp ")]


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
    assert parse(shlex.split(trial)[1:])["junit"] == Path(job["artifacts"]["reports"]["junit"])


def test_commands_of_the_page_are_known_to_the_program() -> None:
    found = commands((FOLDER / "ci.md").read_text())
    assert [arguments[0] for arguments in found] == ["plan", "trial"]
    for arguments in found:
        parse(arguments)
