"""What a trainer cannot express is exported as the nearest plan, with its loss; or refused, exactly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from autosbp.api import LogicalGraph, Plan, PlanOptions, load_cluster, make_plan
from autosbp.cli import app
from autosbp.errors import InputError, UnsupportedError
from autosbp.export import export_plan
from autosbp.export.nearest import export_nearest
from autosbp.trainers import TRAINERS
from autosbp.zoo import zoo_graph

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def graph() -> LogicalGraph:
    return zoo_graph("gpt2-demo")


@pytest.fixture(scope="module")
def mixed(graph: LogicalGraph) -> Plan:
    """Layers that are alike are split unlike, which no trainer can express."""
    pins = {f"transformer.h.{at}.mlp.c_fc.weight.t": layout for at, layout in enumerate(("B,B", "B,S0"))}
    options = PlanOptions(global_batch=16, micro_batch=8, stages=1, pins=pins)
    return make_plan(graph, load_cluster("local:2x2"), options=options)


@pytest.mark.some(2)
@pytest.mark.parametrize("name", TRAINERS)
def test_the_nearest_plan_states_its_loss_and_what_differs(mixed: Plan, graph: LogicalGraph, name: str) -> None:
    with pytest.raises(UnsupportedError, match=name):
        export_plan(name, mixed, graph)
    found = export_nearest(name, mixed, graph)
    assert found.files == export_plan(name, found.plan, graph)
    step_s = found.plan.document["step_time_s"]
    assert found.loss == pytest.approx(step_s / mixed.document["step_time_s"] - 1)
    assert any("transformer.h" in each for each in found.differences)
    assert found.summary.startswith(f"{100 * found.loss:+.1f} %: ")
    assert found.plan.document["nearest_to"]["plan_id"] == mixed.plan_id
    if name != "deepspeed":  # JSON has no comments
        assert mixed.plan_id in "".join(found.files.values())


def test_the_loss_is_no_more_than_that_of_any_baseline_that_can_be_expressed(mixed: Plan, graph: LogicalGraph) -> None:
    fastest_s = min(entry["step_time_s"] for entry in mixed.document["baselines"].values() if entry["feasible"])
    found = [export_nearest(name, mixed, graph).plan.document["step_time_s"] for name in ("deepspeed", "megatron")]
    assert min(found) <= fastest_s * (1 + 1e-9)


def test_what_can_be_expressed_is_exported_as_it_is(mixed: Plan, graph: LogicalGraph) -> None:
    plan = mixed.with_baseline("data_parallel")
    found = export_nearest("deepspeed", plan, graph)
    assert (found.plan, found.loss, found.differences, found.summary) == (plan, 0.0, (), "the same plan")
    assert "OPS" in export_nearest("dtensor", mixed, graph).files["parallelize.py"]


def test_a_plan_with_a_calibration_needs_it_for_the_nearest(mixed: Plan, graph: LogicalGraph) -> None:
    document = {**mixed.document, "provenance": {**mixed.document["provenance"], "calibration_id": "calib-1"}}
    with pytest.raises(InputError, match="expected the plan's calibration calib-1"):
        export_nearest("megatron", Plan(document), graph)


def test_the_command_line_states_the_loss_and_refuses_on_request(mixed: Plan, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(json.dumps(mixed.to_dict()))

    def run(*words: str) -> Any:
        given = ["export", str(tmp_path / "plan.json"), "--model", "zoo:gpt2-demo", "--to", "megatron", *words]
        return CliRunner().invoke(app, given)

    done = run("--json")
    assert done.exit_code == 0
    document = json.loads(done.stdout)
    assert document["nearest_to"] == mixed.plan_id and document["loss"] > -1 and document["differences"]
    refused = run("--exact")
    assert refused.exit_code == 2 and "supports only data x tensor parallel grids" in refused.output
