"""The DTensor module is plain torch that trains as one device does, with every parameter as the plan stores it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autosbp.cluster.spec import load_cluster
from autosbp.export import export_plan
from autosbp.graph.dtype_cast import cast_floats
from autosbp.graph.ir import LogicalGraph
from autosbp.launch.local import run_ranks
from autosbp.plan.plan import Plan, plan_id_of
from autosbp.search.plan_options import PlanOptions
from autosbp.search.planner import make_plan
from autosbp.zoo import zoo_graph
from tests.export.ranks import DISTRIBUTES
from tests.tiers import form

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
    (tmp_path / "parallelize.py").write_text(export_plan("dtensor", plan, graph)["parallelize.py"])
    (tmp_path / "shapes.json").write_text(json.dumps(source_shapes(graph)))
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


def source_shapes(graph: LogicalGraph) -> dict[str, list[int]]:
    """Shapes of the model's tensors that hold the graph's parameters."""
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
    return shapes


PINNED = {f"transformer.h.{at}.mlp.c_fc.weight.t": layout for at, layout in enumerate(("B,B", "B,S0", "S0,B"))}
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "winner": ("gpt2-demo", "", {}),
    "tensor": ("gpt2-demo", "megatron_sp", {"tensor_parallel": 4, "baselines": ("megatron_sp",)}),
    "zero": ("gpt2-demo", "", {"storage": "use", "micro_batch": 4, "recompute": 2}),
    "pinned": ("gpt2-demo", "", {"pins": PINNED, "micro_batch": 8}),
    "perceptron": ("mlp-small", "", {"tensor_parallel": 2}),
    "images": ("vgg13-small", "", {}),
    "llama": ("llama-demo", "", {"tensor_parallel": 2, "data_parallel": 2, "storage": "step", "micro_batch": 8}),
}
"""Model, baseline or "" for the plan itself, and options."""
SHORT = ("tensor", "zero", "perceptron")
"""Cases of the short form."""


def test_the_module_trains_as_one_device_does(tmp_path: Path) -> None:
    names = form(SHORT, tuple(CASES))
    for name in names:
        model, baseline, options = CASES[name]
        graph = cast_floats(zoo_graph(model), "float32", "float64")
        asked = PlanOptions(**{"global_batch": 16, "stages": 1, "baselines": (), **options})
        plan = make_plan(graph, load_cluster("local:2x2"), options=asked)
        plan = plan.with_baseline(baseline) if baseline else plan
        folder = tmp_path / "cases" / name
        folder.mkdir(parents=True)
        (folder / "parallelize.py").write_text(export_plan("dtensor", plan, graph)["parallelize.py"])
        (folder / "graph.json").write_text(json.dumps(graph.to_dict()))
        (folder / "shapes.json").write_text(json.dumps(source_shapes(graph)))
    outcome = run_ranks(
        "tests.export.training_worker", [str(tmp_path / "cases")], 4, tmp_path / "ranks.log", timeout_s=170.0
    )
    assert not outcome.reason, outcome.log_tail
    errors = json.loads((tmp_path / "cases" / "errors.json").read_text())
    assert errors.keys() == set(names)
    for name, error in errors.items():
        assert error["loss"] < 1e-9 and error["parameters"] < 1e-9, (name, error)


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
