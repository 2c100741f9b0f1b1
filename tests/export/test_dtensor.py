"""The DTensor module is Python that runs, and places every parameter as the plan stores it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autosbp.cluster.spec import load_cluster
from autosbp.export import export_plan
from autosbp.graph.ir import LogicalGraph
from autosbp.launch.local import run_ranks
from autosbp.plan.plan import Plan, plan_id_of
from autosbp.search.plan_options import PlanOptions
from autosbp.search.planner import make_plan
from tests.export.ranks import DISTRIBUTES

pytestmark = pytest.mark.integration

WORKER = (
    DISTRIBUTES
    + """    assert tensor.placements == plan["PARAMETERS"][name][2], name
exit_rank()
"""
)


def test_the_module_distributes_a_state_dict_on_real_ranks(
    graph: LogicalGraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = PlanOptions(global_batch=8, baselines=("megatron",))
    plan = make_plan(graph, load_cluster("local:2"), options=options).with_baseline("megatron")
    plan = tensor_parallel(plan, graph)
    shapes: dict[str, list[int]] = {}
    for leaf in graph.parameters:
        shape = list(leaf.meta.sizes)
        for transform in reversed(leaf.transforms):
            if transform[0] == "t":
                shape = shape[::-1]
            else:
                _, dim, _, stop = transform
                shape[dim] = max(stop, shapes.get(leaf.source, shape)[dim])
        shapes[leaf.source] = shape
    (tmp_path / "parallelize.py").write_text(export_plan("dtensor", plan, graph)["parallelize.py"])
    (tmp_path / "shapes.json").write_text(json.dumps(shapes))
    (tmp_path / "distribute_worker.py").write_text(WORKER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    outcome = run_ranks(
        "distribute_worker",
        [str(tmp_path / "parallelize.py"), str(tmp_path / "shapes.json")],
        2,
        tmp_path / "ranks.log",
        timeout_s=90.0,
    )
    assert not outcome.reason, outcome.log_tail


def tensor_parallel(plan: Plan, graph: LogicalGraph) -> Plan:
    """The plan with every parameter stored split, where its first dim is even."""
    parameters = {leaf.name: "S0" if leaf.meta.sizes[0] % 2 == 0 else "B" for leaf in graph.parameters}
    document = {**plan.document, "strategy": {**plan.document["strategy"], "parameters": parameters}}
    return Plan.from_dict({**document, "plan_id": plan_id_of(document)})


def test_the_module_lists_every_parameter_and_op(plan: Plan, graph: LogicalGraph) -> None:
    names: dict[str, object] = {}
    exec(compile(export_plan("dtensor", plan, graph)["parallelize.py"], "parallelize.py", "exec"), names)  # noqa: S102
    assert list(names["PARAMETERS"]) == list(plan.strategy.parameters)
    assert list(names["OPS"]) == list(plan.strategy.signatures)
    assert names["MESH_SHAPE"] == plan.strategy.mesh.shape
    assert names["PLAN_ID"] == plan.plan_id


def test_the_module_needs_no_graph(plan: Plan) -> None:
    text = export_plan("dtensor", plan)["parallelize.py"]
    compile(text, "parallelize.py", "exec")
    assert "('transformer.wte.weight', ()," in text


def test_names_of_a_plan_cannot_become_code(plan: Plan) -> None:
    document = {**plan.document, "model": 'x"""\nraise SystemExit(3)\n"""'}
    hostile = Plan.from_dict({**document, "plan_id": plan_id_of(document)})
    exec(compile(export_plan("dtensor", hostile)["parallelize.py"], "parallelize.py", "exec"), {})  # noqa: S102
