"""A plan whose strategy has a pipeline, from its file to a trial on real ranks, and what is said of it on the way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autosbp.api import PlanOptions, load_cluster, make_plan, run_trial
from autosbp.cli._explain import _program, explanation
from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.network import NetworkModel
from autosbp.costmodel.strategy_cost import evaluate
from autosbp.errors import InputError
from autosbp.plan.plan import Plan, plan_id_of
from autosbp.plan.schedules import INTERLEAVED
from autosbp.report.plan_diff import difference
from tests.executor.conftest import graph_of
from tests.executor.pipeline.strategies import data_parallel, pipelined

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def plans() -> tuple[Plan, Plan]:
    """One without and one with stages."""
    graph, cluster = graph_of("mlp"), load_cluster("local:2x2")
    plan = make_plan(graph, cluster, None, PlanOptions(global_batch=8, micro_batch=2))
    strategy = pipelined(graph, data_parallel(graph, 2), 2, INTERLEAVED, 2)
    boxing = BoxingModel(NetworkModel(cluster), strategy.mesh)
    costs = evaluate(graph.bind(batch=2), strategy, boxing, ComputeModel(cluster.device))
    document = {**plan.document, **costs.to_dict(), "strategy": strategy.to_dict()}
    return plan, Plan.from_dict({**document, "plan_id": plan_id_of(document)})


@pytest.fixture(scope="module")
def result(plans: tuple[Plan, Plan], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    plan = Plan.from_dict(json.loads(json.dumps(plans[1].to_dict())))
    return run_trial(plan, graph_of("mlp"), steps=3, warmup=1, workdir=tmp_path_factory.mktemp("trial"))


def test_a_trial_of_stages_has_the_losses_of_one_device_and_the_charged_messages(result: dict[str, Any]) -> None:
    assert result["num_ranks"] == 4
    assert result["collectives_match"]
    assert result["loss_difference"] <= 1e-5
    assert "p2p" in {kind for kind, _, _ in result["collectives"]}


def test_a_trial_of_stages_uses_the_predicted_memory(result: dict[str, Any]) -> None:
    assert result["memory_bytes"] == pytest.approx(result["predicted_memory_bytes"], rel=0.15)


def test_an_unknown_rank_is_refused(plans: tuple[Plan, Plan]) -> None:
    with pytest.raises(InputError, match="0 to 3"):
        _program(plans[1], graph_of("mlp"), 4)


def test_the_program_of_a_rank_is_those_of_its_stages_chunks(plans: tuple[Plan, Plan]) -> None:
    first, last = (_program(plans[1], graph_of("mlp"), rank) for rank in (0, 3))
    assert first.count("class PhysicalProgram") == last.count("class PhysicalProgram") == 2
    assert first.count("received_") < last.count("received_")


def test_explain_counts_messages_between_stages_and_names_the_cuts(plans: tuple[Plan, Plan]) -> None:
    found = explanation(plans[1], graph_of("mlp"))
    between = {(entry["kind"], entry["phase"]) for entry in found["collectives"] if entry["axes"] == ["stages"]}
    assert {("p2p", "forward"), ("p2p", "backward"), ("broadcast", "sync")} <= between
    assert found["comm_bytes_per_device"] == sum(entry["bytes_per_device"] for entry in found["collectives"])
    assert found["pipeline"]["num_stages"] == 2
    assert "pipeline" not in explanation(plans[0], None)


def test_a_diff_says_that_one_plan_has_stages(plans: tuple[Plan, Plan]) -> None:
    found = difference(plans[0].document, plans[1].document)
    assert found["choices"]["pipeline"]["a"] is None
    assert found["choices"]["pipeline"]["b"]["schedule"] == "interleaved_1f1b"


def test_a_trial_whose_cuts_the_graph_lacks_starts_no_rank(plans: tuple[Plan, Plan], tmp_path: Path) -> None:
    document = json.loads(json.dumps(plans[1].to_dict()))
    document["strategy"]["pipeline"]["cuts"][0] = "nowhere"
    document["plan_id"] = plan_id_of(document)
    with pytest.raises(InputError, match="an op of the graph"):
        run_trial(Plan.from_dict(document), graph_of("mlp"), steps=1, warmup=1, workdir=tmp_path)
    assert not list(tmp_path.iterdir())
