"""A model's own autograd functions keep their backward: captured, stored, split, trained; or refused by name and line."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import torch
from jsonschema import Draft202012Validator
from torch import nn

from autosbp.api import PlanOptions, load_cluster, make_plan, run_trial
from autosbp.discovery import discover_rules
from autosbp.errors import GraphError, UnsupportedError
from autosbp.graph.capture import build_on_meta, capture
from autosbp.graph.custom_functions import intern_function
from autosbp.graph.dtype_cast import cast_floats
from autosbp.graph.function_ops import function_op
from autosbp.graph.huggingface import capture_hf_config
from autosbp.graph.ir import LogicalGraph
from autosbp.graph.serialize import from_dict
from autosbp.graph.to_fx import check_shapes, resolve_op
from autosbp.sbp.rules import check_graph
from autosbp.utils.json_io import canonical, loads
from tests.graph import functions_for_tests as functions
from tests.graph.numerics import Double, assert_same, weights

pytestmark = pytest.mark.integration

BODIES: dict[str, Callable[[functions.Model, torch.Tensor], torch.Tensor]] = {
    "straight-through": functions.estimated,
    "reversal": functions.reversed_gradient,
    "linear": functions.noted,
    "casting": functions.cast_to_double,
}


def inputs(batch: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(batch)
    return {"x": torch.randn(batch, 3, 12, generator=generator, dtype=torch.float64)}


def captured(name: str) -> LogicalGraph:
    return capture(build_on_meta(lambda: functions.Model(BODIES[name]), torch.float64), inputs(3), name=name)


@pytest.mark.parametrize("name", BODIES)
def test_a_function_keeps_its_own_backward(name: str) -> None:
    graph = captured(name)
    check_graph(graph)
    assert from_dict(loads(canonical(graph.to_dict()))) == graph
    module = functions.Model(BODIES[name]).double()
    weights(module)
    for batch in (2, 5):
        assert_same(graph, module, inputs(batch))


def test_layouts_of_a_function_are_discovered() -> None:
    graph = discover_rules(captured("straight-through"), use_cache=False)
    (rule,) = graph.rules.values()
    assert {option.ins + option.outs for option in rule.options} >= {("S0", "S0"), ("S1", "S1"), ("S2", "S2")}
    linear = discover_rules(captured("linear"), use_cache=False)
    layouts = {f"{' '.join(option.ins)} -> {' '.join(option.outs)}" for option in linear.rules[_first(linear)].options}
    assert "S0 B B -> S0 S0" in layouts


def _first(graph: LogicalGraph) -> str:
    return next(node.rule for node in graph.nodes if node.op.startswith("function."))


def test_training_with_a_function_on_two_ranks_equals_one_device(tmp_path: Path) -> None:
    module, example = functions.factory()
    graph = discover_rules(capture(module, example, name="model"))
    plan = make_plan(graph, load_cluster("local:2"), options=PlanOptions(global_batch=8, baselines=()))
    result = run_trial(plan, graph, steps=2, warmup=1, workdir=tmp_path)
    assert result["loss_difference"] < 1e-5
    assert len(set(result["losses"])) == len(result["losses"])


def test_transformers_functions_keep_their_backward() -> None:
    config = {"model_type": "bloom", "hidden_size": 32, "n_layer": 1, "n_head": 4, "vocab_size": 64, "dtype": "float64",
              "hidden_dropout": 0.0, "attention_dropout": 0.0}  # fmt: skip
    from transformers import AutoConfig, AutoModelForCausalLM

    with Double():
        graph = capture_hf_config(config, seq_len=8)
        assert any(node.op.startswith("function.GeLUFunction.") for node in graph.nodes)
        made = AutoConfig.for_model("bloom", **{key: each for key, each in config.items() if key != "model_type"})
        module = AutoModelForCausalLM.from_config(made, dtype=torch.float64).train()
        weights(module)
        ids = torch.randint(0, 64, (3, 8), generator=torch.Generator().manual_seed(0))
        assert_same(graph, module, {"input_ids": ids, "labels": ids})


class Refused(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.linear, self.function = nn.Linear(12, 12), function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.function.apply(self.linear(x).clone()).sum()
        return out


def test_a_function_that_branches_on_values_is_refused_by_its_line() -> None:
    with pytest.raises(UnsupportedError, match=r"functions_for_tests.py, line \d+ .*dense form"):
        capture(Refused(functions.Branching), {"x": torch.zeros(4, 12)}, name="refused")


def test_functions_follow_the_dtype_of_their_graph() -> None:
    graph = cast_floats(captured("casting"), "float64", "float32")
    (name,) = graph.functions
    assert '"dtype":"float32"' in graph.functions[name].text
    assert [node.op for node in graph.nodes if node.op.startswith("function.")] == [name]
    check_shapes(graph.bind(batch=4))


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (functions.Impure, "in place"),
        (functions.Random, "random numbers .aten.rand_like"),
    ],
)
def test_what_cannot_be_an_op_is_refused_by_class_and_line(function: Any, says: str) -> None:
    where = rf"{function.__name__} at File \".*functions_for_tests.py\", line \d+ .*{says}.*straight-through"
    with pytest.raises(UnsupportedError, match=where):
        capture(Refused(function), {"x": torch.zeros(4, 12)}, name="refused")


def changed(change: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    document = copy.deepcopy(captured("straight-through").to_dict())
    change(next(iter(document["functions"].values())))
    return document


def test_sizes_of_a_function_stay_within_64_bits() -> None:
    squares = [{"name": "n0", "op": "int.size", "args": [{"ref": "x0"}, 0]}]
    squares += [
        {"name": f"n{at}", "op": "int.mul", "args": [{"ref": f"n{at - 1}"}, {"ref": f"n{at - 1}"}]}
        for at in range(1, 99)
    ]
    body = {"inputs": 1, "outputs": [{"ref": "x0"}], "gradients": [{"ref": "g0"}]}
    scaled = {"name": "y", "op": "aten.mul.Scalar", "args": [{"ref": "x0"}, {"ref": "n98"}]}
    function = intern_function("Squares", {**body, "steps": [*squares, scaled], "outputs": [{"ref": "y"}]})
    with pytest.raises(ValueError, match="beyond 64 bits"):
        function_op(function, resolve_op)(torch.ones(3))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda body: body["steps"][0].update(op="aten.empty.memory_format"), "steps[0].op"),
        (lambda body: body["steps"][0].update(op="os.system.default"), "steps[0].op"),
        (lambda body: body["steps"][0].update(op="aten.lstm.input"), "steps[0].op"),
        (lambda body: body["steps"][0].update(args=[{"ref": "v9"}]), "steps[0].args[0]"),
        (lambda body: body["steps"][0].update(args=[{"dtype": "complex64"}]), "steps[0].args[0]"),
        (lambda body: body["steps"][0].update(name="x0"), "steps[0].name"),
        (lambda body: body.update(outputs=[]), "outputs"),
        (lambda body: body.update(outputs=[{"ref": "g0"}]), "outputs"),
        (lambda body: body.update(gradients=[]), "gradients"),
        (lambda body: body.update(inputs=0), "inputs"),
        (lambda body: body.update(constant_outputs=[3]), "constant_outputs"),
        (lambda body: body.update(code="x"), "code"),
        (lambda body: body["steps"][0]["args"].append(7), "functions"),
    ],
)
def test_a_body_that_breaks_a_rule_is_refused_by_field(change: Callable[[dict[str, Any]], None], field: str) -> None:
    with pytest.raises(GraphError) as caught:
        from_dict(changed(change))
    assert field in caught.value.field


def test_a_function_that_the_document_does_not_hold_is_refused() -> None:
    document = captured("straight-through").to_dict()
    del document["functions"]
    with pytest.raises(GraphError, match="functions of the graph are none"):
        from_dict(document)


def test_the_published_schema_takes_functions() -> None:
    schema = json.loads((files("autosbp") / "data" / "graph.schema.json").read_text())
    Draft202012Validator(schema).validate(loads(canonical(captured("linear").to_dict())))
