"""``plan --builder``: synchronization of a plan's gradients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer

from autosbp.cli import app
from autosbp.plan.plan import Plan
from autosbp.search.sync_builders import BUILDERS
from tests.cli.conftest import Run

pytestmark = pytest.mark.integration


def plan_with(run: Run, folder: Path, *options: object) -> Plan:
    done = run(
        "plan", folder / "graph.json", "--cluster", "local:2x2", "--global-batch", 64, "--data-parallel", 4,
        "--baselines", "none", "--json", *options,
    )  # fmt: skip
    assert done.exit_code == 0, done.stderr
    return Plan.from_dict(json.loads(done.stdout))


def test_a_builder_is_in_the_plan_and_shown(run: Run, folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "served.json"
    found = plan_with(run, folder, "--builder", "ps_hierarchical", "--chunk", 1, "-o", path)
    assert found.strategy.sync is not None and found.document["searcher"] == "builder ps_hierarchical 1"
    shown = run("explain", path).stdout
    assert "synchronization, 4 replicas" in shown and "over g0 then n0" in shown


def test_diff_names_the_synchronizer_of_each_parameter(run: Run, folder: Path, tmp_path: Path) -> None:
    for name in ("all_reduce", "ps"):
        plan_with(run, folder, "--builder", name, "-o", tmp_path / f"{name}.json")
    found = json.loads(run("diff", tmp_path / "all_reduce.json", tmp_path / "ps.json", "--json").stdout)
    assert found["sync"]["layers.0.weight"] == {"a": "all-reduce [0]", "b": "parameter-server at 0 [0]"}
    assert "different sync" in run("diff", tmp_path / "all_reduce.json", tmp_path / "ps.json").stdout


def test_help_names_every_builder() -> None:
    program: Any = typer.main.get_command(app)
    (option,) = (each for each in program.commands["plan"].params if each.name == "builder")
    assert all(name in option.help for name in (*BUILDERS, "auto"))


def test_auto_is_no_slower_than_the_default(run: Run, folder: Path) -> None:
    replicated = ("--storage", "as_used")
    times = [plan_with(run, folder, *more).document["step_time_s"] for more in (replicated, ("--builder", "auto"))]
    assert times[1] <= times[0]


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--builder", "gossip"), "parallax"),
        (("--builder", "ddp", "--chunk", 4), "chunk"),
        (("--builder", "auto", "--chunk", 4), "chunk"),
        (("--chunk", 4), "--builder"),
        (("--builder", "ps", "--server", "http://localhost:9"), "--server"),
    ],
)
def test_bad_builders_are_refused_before_a_search(
    run: Run, folder: Path, options: tuple[object, ...], word: str
) -> None:
    done = run("plan", folder / "graph.json", "--cluster", "local:2x2", *options)
    assert done.exit_code == 2 and word in done.stderr and "searching" not in done.stderr
