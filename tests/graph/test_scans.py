"""Scans are one op: captured, stored, split, counted; or refused by the line of their step."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Any

import pytest
import torch
from jsonschema import Draft202012Validator
from torch import nn

from autosbp.costmodel.memory import rank_memory
from autosbp.discovery import discover_rules
from autosbp.errors import GraphError, UnsupportedError
from autosbp.executor.parameter_shards import initial_parameters
from autosbp.executor.runtime import Runtime
from autosbp.executor.training import Trainer, random_batch
from autosbp.executor.trial_metrics import SavedBytes
from autosbp.graph.capture import capture
from autosbp.graph.custom_functions import scan_of
from autosbp.graph.discovered_rules import DiscoveredRule
from autosbp.graph.dtype_cast import cast_floats
from autosbp.graph.huggingface import capture_hf_config
from autosbp.graph.ir import LogicalGraph, Node
from autosbp.graph.serialize import from_dict
from autosbp.graph.to_fx import check_shapes
from autosbp.sbp.rules import check_graph, sharding_of
from autosbp.utils.json_io import canonical, loads
from benchmarks.lowering._strategies import data_parallel
from tests.executor.test_memory_profiled import allocated
from tests.graph import scans_for_tests as scans
from tests.graph.numerics import assert_same

pytestmark = pytest.mark.integration

EQUAL = "equal the module's (float64)"
MODELS: dict[str, Callable[[], nn.Module]] = {
    "selective": scans.StateSpace,
    "backwards": lambda: scans.StateSpace(reverse=True),
    "two states": scans.TwoStates,
    "associative": scans.Averages,
}


def captured(name: str, tokens: int = 7) -> LogicalGraph:
    width = 24 if name in ("selective", "backwards") else 12
    return capture(MODELS[name](), {"x": torch.zeros(3, tokens, width)}, name=name)


def scan_nodes(graph: LogicalGraph) -> list[Node]:
    return [node for node in graph.nodes if scan_of(node.op) is not None]


@pytest.mark.parametrize("name", MODELS)
def test_a_scan_is_one_op_that_equals_the_module(name: str) -> None:
    graph = captured(name)
    assert graph.provenance["checked"].endswith(EQUAL)
    assert len(scan_nodes(graph)) == 1
    check_graph(graph)
    check_shapes(graph.bind(batch=5))
    document = loads(canonical(graph.to_dict()))
    assert from_dict(document) == graph
    Draft202012Validator(json.loads((files("autosbp") / "data" / "graph.schema.json").read_text())).validate(document)


def test_tokens_add_no_ops() -> None:
    assert len(captured("selective", 5).nodes) == len(captured("selective", 50).nodes)


@cache
def discovered() -> LogicalGraph:
    return discover_rules(captured("selective"), use_cache=False)


def with_rule(graph: LogicalGraph, rule: DiscoveredRule) -> LogicalGraph:
    """The graph with this rule for its scan."""
    nodes = tuple(replace(node, rule="scan") if node in scan_nodes(graph) else node for node in graph.nodes)
    return replace(graph, nodes=nodes, rules={"scan": rule})


def test_batch_width_and_states_are_split_and_tokens_are_not() -> None:
    graph = discovered()
    (node,) = scan_nodes(graph)
    layouts = {f"{' '.join(option.ins)} -> {' '.join(option.outs)}" for option in graph.rules[node.rule].options}
    split = {"S0 S1 S1 S1 S1 B -> S0 S1", "S1 S2 S2 B B S0 -> S1 S2", "S2 B B S2 S2 S1 -> S2 P"}
    assert {layout for layout in layouts if "S" in layout} == split


def test_flops_and_kernels_grow_with_the_steps() -> None:
    (rule,) = discovered().rules.values()
    found = []
    for tokens in (5, 10):
        graph = with_rule(captured("selective", tokens), rule).bind(batch=4)
        found.append(sharding_of(graph, scan_nodes(graph)[0]))
    one, two = found
    assert two.flops == 2 * one.flops == 2 * 2 * 5 * 4 * 24 * 6
    assert two.launches == tuple(2 * count for count in one.launches)
    assert one.launches[0] == 5 * 7  # exp, products, sum, and a product of matrices


@pytest.mark.parametrize(("tokens", "width", "states"), [(64, 48, 16), (200, 64, 8)])
def test_what_is_kept_and_the_peak_are_what_torch_allocates(tokens: int, width: int, states: int) -> None:
    batch = 8
    module = scans.StateSpace(width, states)
    captured_model = capture(module, {"x": torch.zeros(4, tokens, width)}, name="model", check=False)
    graph = with_rule(captured_model, DiscoveredRule((), "runs on one rank here"))
    strategy, device = data_parallel(graph, 1, batch), torch.device("cpu")
    memory = rank_memory(graph.bind(batch=batch), strategy)
    assert memory.peak == pytest.approx(allocated(graph, strategy), rel=0.01)
    runtime = Runtime(strategy.mesh, 0, device)
    trainer = Trainer(graph, strategy, initial_parameters(graph, 0), device=device, runtime=runtime)
    data = random_batch(graph, batch, 0)
    with SavedBytes([*trainer.locals.values(), *data.values()]) as saved:
        trainer.step(data)
    assert memory.kept == pytest.approx(saved.bytes, rel=0.002)


def test_ctc_loss_is_a_scan_over_frames() -> None:
    generator = torch.Generator().manual_seed(0)
    batch = {
        "x": torch.randn(5, 12, 12, dtype=torch.float64, generator=generator),
        "labels": torch.randint(3, 7, (5, 4), generator=generator),
        "counts": torch.tensor([4, 3, 1, 0, 2]),
    }
    module = scans.Transcriber().double()
    graph = capture(module, batch, name="transcriber", input_high={"labels": 7, "counts": 5})
    assert len(scan_nodes(graph)) == 1
    assert_same(graph, module, batch)


def test_a_step_follows_the_dtype_of_its_graph() -> None:
    check_shapes(cast_floats(captured("two states"), "float32", "float64").bind(batch=4))


def test_a_state_that_changes_its_shape_is_refused_by_line() -> None:
    with pytest.raises(UnsupportedError, match=r"step at File \".*scans_for_tests.py\", line \d+ .*becomes one of"):
        capture(scans.Growing(), {"x": torch.zeros(3, 4, 12)}, name="refused")


@pytest.mark.parametrize("counts", [{"carries": 3, "slices": 1}, {"carries": 1, "slices": 9}, {"carries": 1}])
def test_a_body_with_wrong_counts_is_refused_by_field(counts: dict[str, Any]) -> None:
    document = copy.deepcopy(captured("selective").to_dict())
    next(iter(document["functions"].values()))["scan"] = counts
    with pytest.raises(GraphError, match="scan"):
        from_dict(document)


SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 64, "intermediate_size": 48}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
JAMBA = {
    "mamba_d_state": 4, "mamba_dt_rank": 4, "attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2,
    "expert_layer_period": 2, "expert_layer_offset": 1,
}  # fmt: skip
FAMILIES = {
    "mamba": {**SMALL, "state_size": 4},
    "falcon_mamba": {**SMALL, "state_size": 4},
    "jamba": {**SMALL, **HEADS, **JAMBA},
    "rwkv": {**SMALL, "attention_hidden_size": 32},
    "recurrent_gemma": {**SMALL, "num_attention_heads": 4, "lru_width": 32, "attention_window_size": 8},
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.some(2)
def test_recurrences_of_transformers_equal_their_loops(family: str) -> None:
    graph = capture_hf_config({"model_type": family, **FAMILIES[family]}, seq_len=7)
    assert graph.provenance["checked"].endswith(EQUAL)
    assert len(scan_nodes(graph)) == (1 if family == "jamba" else 2)
