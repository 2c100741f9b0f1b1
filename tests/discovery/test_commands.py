"""Commands on a user's model with custom ops: its plan warns, and ranks import the module that defines the ops."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from autosbp import api
from autosbp.cli import app
from autosbp.errors import TrialError
from autosbp.graph_sources import factory_module
from autosbp.plan.plan import plan_id_of

pytestmark = pytest.mark.integration

MODEL = "tests.discovery.models:mixing_shop"
OPTIONS = ("--cluster", "local:2", "--global-batch", 8)
WARNING = "shop.sort_mix.default (1 node) has no layout that splits its work: it is replicated on every device."


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``graph.json`` and its ``plan.json``."""
    path = tmp_path_factory.mktemp("shop")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(path / "cache"))
        assert run("capture", MODEL, "-o", path / "graph.json").exit_code == 0
        assert run("plan", path / "graph.json", *OPTIONS, "-o", path / "plan.json").exit_code == 0
    return path


def test_a_plan_warns_on_standard_error_and_in_its_document(folder: Path, tmp_path: Path) -> None:
    where = tmp_path / "plan.json"
    done = run("plan", folder / "graph.json", *OPTIONS, "-o", where)
    assert done.exit_code == 0, done.stderr
    assert f"warning: {WARNING}" in done.stderr
    assert json.loads(where.read_text())["warnings"] == [WARNING]
    told = run("plan", folder / "graph.json", *OPTIONS, "--json")
    assert json.loads(told.stdout)["warnings"] == [WARNING]
    assert f"warning: {WARNING}" in told.stderr
    assert json.loads(run("explain", where, "--json").stdout)["warnings"] == [WARNING]


def test_a_plan_with_warnings_that_are_no_sentences_is_refused(folder: Path, tmp_path: Path) -> None:
    plan = {**json.loads((folder / "plan.json").read_text()), "warnings": [3]}
    (tmp_path / "wrong.json").write_text(json.dumps({**plan, "plan_id": plan_id_of(plan)}))
    done = run("explain", tmp_path / "wrong.json")
    assert done.exit_code == 2
    assert "warnings[0]: 3 is invalid" in done.stderr


def test_ranks_train_with_the_ops_of_a_module_that_is_named(folder: Path) -> None:
    trial = ("trial", folder / "plan.json", "--graph", folder / "graph.json", "--steps", 2, "--warmup", 1)
    done = run(*trial)
    assert done.exit_code == 4
    assert "an op of the library shop, after importing it" in done.stderr
    done = run(*trial, "--import", "tests.discovery.library", "--max-loss-difference", 1e-4, "--json")
    assert done.exit_code == 0, done.stderr
    assert all(gate["passed"] for gate in json.loads(done.stdout)["gates"].values())
    done = run(*trial, "--import", "os; print(1)")
    assert done.exit_code == 2
    assert "the name of a module" in done.stderr


def test_the_module_of_a_factory_is_imported_by_itself(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def ran(*_: object, libraries: object, **__: object) -> dict[str, object]:
        asked.append(libraries)
        raise TrialError("seen")

    monkeypatch.setattr(api, "run_trial", ran)
    assert run("trial", folder / "plan.json", "--model", MODEL, "--import", "json").exit_code == 4
    assert asked == [["json", "tests.discovery.models"]]
    assert [factory_module(model) for model in ("zoo:vgg16", "hf:config", "graph.json")] == [None, None, None]
