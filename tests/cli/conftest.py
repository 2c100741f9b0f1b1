"""A two-layer graph written by hand, a plan of it, and a runner of commands."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from autosbp.cli import app

Run = Callable[..., Result]


@dataclass(frozen=True)
class Kept:
    """A trial's command and the folder that it kept."""

    done: Result
    folder: Path


def tensor(*shape: object) -> dict[str, Any]:
    return {"shape": list(shape), "dtype": "float32"}


def graph_document() -> dict[str, Any]:
    """The sum of two linear layers' outputs with a relu between them."""
    ref = [{"ref": name} for name in ("x", "layers.0.weight", "linear_0", "relu_0", "layers.1.weight", "linear_1")]
    return {
        "schema": "autosbp.graph/1",
        "name": "tiny",
        "symbols": {"batch": 4},
        "parameters": [
            {"name": "layers.0.weight", **tensor(1024, 512)},
            {"name": "layers.1.weight", **tensor(128, 1024)},
        ],
        "inputs": [{"name": "x", **tensor("batch", 512)}],
        "constants": [],
        "nodes": [
            {"name": "linear_0", "op": "aten.linear.default", "args": ref[:2], "outputs": [tensor("batch", 1024)]},
            {"name": "relu_0", "op": "aten.relu.default", "args": ref[2:3], "outputs": [tensor("batch", 1024)]},
            {"name": "linear_1", "op": "aten.linear.default", "args": ref[3:5], "outputs": [tensor("batch", 128)]},
            {"name": "sum_0", "op": "aten.sum.default", "args": ref[5:], "outputs": [tensor()]},
        ],
        "loss": {"ref": "sum_0"},
        "provenance": {},
    }


@pytest.fixture(scope="package")
def run() -> Run:
    """Run a command in this process; an exception that is no exit fails the test."""
    runner = CliRunner()

    def call(*arguments: object) -> Result:
        return runner.invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)

    return call


@pytest.fixture(scope="package")
def folder(tmp_path_factory: pytest.TempPathFactory, run: Run) -> Path:
    """``graph.json`` and, for two clusters, its plans ``plan.json`` and ``plan4.json``; ``grid.json`` has two mesh axes."""
    path = tmp_path_factory.mktemp("cli")
    (path / "graph.json").write_text(json.dumps(graph_document()))
    grid = ("--data-parallel", 2, "--tensor-parallel", 2)
    for name, cluster, more in (
        ("plan.json", "local:2", ()),
        ("plan4.json", "local:4", ()),
        ("grid.json", "local:4", grid),
    ):
        done = run("plan", path / "graph.json", "--cluster", cluster, "--global-batch", 64, *more, "-o", path / name)
        assert done.exit_code == 0, done.stderr
    return path


@pytest.fixture(scope="package")
def plan(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / "plan.json").read_text())
    return document


@pytest.fixture(scope="package")
def kept(run: Run, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """A trial of ``plan.json`` on two real ranks, with a gate that it misses."""
    path = tmp_path_factory.mktemp("trial")
    done = run(
        *("trial", folder / "plan.json", "--graph", folder / "graph.json", "--steps", 4, "--warmup", 1, "--json"),
        *("--max-step-time", 1e-9, "--max-loss-difference", 1e-4, "--workdir", path),
    )
    return Kept(done, path)
