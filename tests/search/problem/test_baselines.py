"""Baselines: what each is, that it is an ordinary strategy, and what it costs beside the plan."""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import product

import numpy as np
import pytest

from autosbp.api import LogicalGraph, Plan, PlanOptions, capture, load_cluster, make_plan
from autosbp.errors import InfeasibleError, InputError
from autosbp.program.parameter_sharding import sharded_layout
from autosbp.sbp.boxing import split_factor
from autosbp.sbp.layout import P, parse_sbp
from autosbp.search import Edge, SearchOptions, SearchProblem, cost_of
from autosbp.search.problem.baselines import BASELINES, DEFAULT_BASELINES
from autosbp.search.problem.strategy import used_layouts
from autosbp.search.solvers.tied_layers import tied, variable_groups

pytestmark = [pytest.mark.some(2), pytest.mark.integration]

MODELS = ("zoo:gpt2-demo", "zoo:llama-demo", "zoo:mlp-small")


@cache
def graph_of(model: str) -> LogicalGraph:
    return capture(model)


@cache
def plan_of(model: str, micro_batch: int | None = None) -> Plan:
    options = PlanOptions(global_batch=16, micro_batch=micro_batch, baselines=BASELINES)
    return make_plan(graph_of(model), load_cluster("local:2x2"), options=options)


@pytest.mark.some(2)
@pytest.mark.parametrize("model", MODELS)
def test_every_baseline_is_an_ordinary_strategy_and_none_beats_the_plan(model: str) -> None:
    document = plan_of(model).document
    assert tuple(document["baselines"]) == BASELINES
    for name, entry in document["baselines"].items():
        assert entry["feasible"], (name, entry["reason"])
        assert entry["step_time_s"] >= document["step_time_s"] * (1 - 1e-9), name
        assert plan_of(model).baseline_strategy(name).global_batch == 16


@pytest.mark.parametrize("model", MODELS)
def test_zero_sends_what_data_parallel_does_and_stores_a_part(model: str) -> None:
    known = plan_of(model).document["baselines"]
    whole = known["data_parallel"]
    for name in ("zero1", "zero2"):
        assert known[name]["comm_bytes_per_device"] == pytest.approx(whole["comm_bytes_per_device"], rel=0.01)
        assert known[name]["memory_breakdown"]["optimizer"] < 0.3 * whole["memory_breakdown"]["optimizer"]
    assert known["zero3"]["memory_breakdown"]["parameters"] < 0.3 * whole["memory_breakdown"]["parameters"]


def test_zero3_gathers_in_every_microbatch_and_zero2_takes_the_batch_at_once() -> None:
    plan = plan_of("zoo:llama-demo", 4)
    assert plan.baseline_strategy("zero3").gather == "use"
    assert plan.baseline_strategy("zero1").num_micro == plan.baseline_strategy("zero3").num_micro == 4
    assert plan.baseline_strategy("zero2").num_micro == 1
    known = plan.document["baselines"]
    assert known["zero3"]["comm_bytes_per_device"] > 3 * known["zero1"]["comm_bytes_per_device"]


def test_summa_stores_every_matrix_over_both_dims_of_its_grid() -> None:
    strategy, graph = plan_of("zoo:llama-demo").baseline_strategy("summa_2d"), graph_of("zoo:llama-demo")
    assert strategy.gather == "use"
    matrices = [leaf for leaf in graph.parameters if len(leaf.meta.shape) > 1]
    assert matrices
    for leaf in matrices:
        assert split_factor(strategy.parameters[leaf.name], strategy.mesh) == 4, leaf.name
    for name, signature in strategy.signatures.items():
        if "linear" in name:
            assert not any(sbp.is_partial for sbp in signature.outs[0]), name


def test_one_weird_trick_splits_the_batch_of_convolutions_and_the_weights_of_products() -> None:
    options = PlanOptions(global_batch=16, baselines=("megatron", "one_weird_trick"))
    plan = make_plan(graph_of("zoo:vgg13-small"), load_cluster("local:4"), options=options)
    strategy = plan.baseline_strategy("one_weird_trick")
    for name, signature in strategy.signatures.items():
        if name.startswith("conv2d"):
            assert {str(sbp) for sbp in signature.ins[0]} == {"S0"} and {str(sbp) for sbp in signature.ins[1]} == {"B"}
    known = plan.document["baselines"]
    assert known["one_weird_trick"]["step_time_s"] <= known["megatron"]["step_time_s"]


def test_sequence_parallelism_splits_what_norms_read_and_leaves_their_weights_whole() -> None:
    names = ("megatron", "megatron_sp")
    options = PlanOptions(global_batch=2, stages=1, micro_batch=2, baselines=names)
    plan = make_plan(graph_of("zoo:gpt2"), load_cluster("dgx-a100-40g:1"), options=options)
    whole, split = (plan.baseline_strategy(name) for name in names)
    norms = {name for name in split.signatures if name.startswith("layer_norm")}
    assert len(norms) == 25
    data, tensor = range(2)
    for name in norms:
        row = split.signatures[name]
        assert all(layout[tensor] == parse_sbp("B") for layout in row.ins[1:])  # no split of its weight and bias
        assert row.ins[0][data] == parse_sbp("S0") and row.ins[0] == row.outs[0]
    sequence = {name for name in norms if split.signatures[name].ins[0][tensor] == parse_sbp("S1")}
    assert len(sequence) > 20
    assert not any(whole.signatures[name].ins[0][tensor] == parse_sbp("S1") for name in norms)
    known = plan.document["baselines"]
    for cost in ("step_time_s", "memory_bytes_per_device"):
        assert known["megatron_sp"][cost] < known["megatron"][cost]


def test_alpa_like_ops_read_no_partial_sums_of_other_clusters() -> None:
    strategy, graph = plan_of("zoo:gpt2-demo").baseline_strategy("alpa_like"), graph_of("zoo:gpt2-demo")
    made = {node.name: node for node in graph.nodes}
    assert strategy.mesh.ndim <= 2
    for name, signature in strategy.signatures.items():
        if "linear" in name:
            read = made[name].refs()
            for ref, layout in zip(read, signature.ins, strict=True):
                assert ref.name in graph.parameter_names or not any(sbp.is_partial for sbp in layout), name


def test_tied_layers_have_one_layout() -> None:
    strategy = plan_of("zoo:llama-demo").baseline_strategy("autoddl_tied")
    layouts: dict[str, set[str]] = {}
    for leaf, layout in strategy.parameters.items():
        layouts.setdefault(".".join(part for part in leaf.split(".") if not part.isdigit()), set()).add(str(layout))
    assert any("layers" in name or ".h." in name or "blocks" in name for name in layouts)
    assert all(len(found) == 1 for found in layouts.values()), layouts


def test_tied_finds_the_best_assignment_in_which_like_variables_agree() -> None:
    rng = np.random.default_rng(0)
    own, none, use = rng.random(3), np.zeros(2), np.zeros(3, dtype=np.int64)
    spare = np.zeros(2, dtype=np.int64)
    into, out, first = rng.random((3, 2)), rng.random((2, 3)), rng.random((3, 3))
    problem = SearchProblem(
        ("a", "a>b", "b", "b>c", "c", "head"),
        (own, none, own, none, own, rng.random(3)),
        (use, spare, use, spare, use, use),
        (Edge(0, 1, into), Edge(1, 2, out), Edge(2, 3, into), Edge(3, 4, out), Edge(0, 4, first), Edge(5, 4, first)),
    )
    assert variable_groups(problem) == [0, 1, 0, 1, 0, 2]
    best = min(
        (cost_of(problem, (a, x, a, x, a, head)), (a, x, a, x, a, head))
        for a, x, head in product(range(3), range(2), range(3))
    )
    found = tied(problem, SearchOptions())
    assert found.cost_s == pytest.approx(best[0]) and found.assignment == best[1]
    assert found.lower_bound_s == pytest.approx(best[0])


def test_a_plan_compares_with_what_is_asked_for() -> None:
    graph, cluster = graph_of("zoo:mlp-small"), load_cluster("local:4")
    assert tuple(make_plan(graph, cluster).document["baselines"]) == DEFAULT_BASELINES
    options = PlanOptions(baselines=("summa_2d",))
    assert tuple(make_plan(graph, cluster, options=options).document["baselines"]) == ("summa_2d",)
    assert PlanOptions.from_dict(options.to_dict()) == options
    assert make_plan(graph, cluster, options=PlanOptions(baselines=())).document["baselines"] == {}


@pytest.mark.some(2)
@pytest.mark.parametrize("micro_batch", [None, 4])
@pytest.mark.parametrize("model", MODELS)
def test_fsdp2_gathers_once_a_step_or_for_each_use_whichever_is_quicker(model: str, micro_batch: int | None) -> None:
    plan = plan_of(model, micro_batch)
    known = plan.document["baselines"]
    quicker = min(("zero1", "zero3"), key=lambda name: known[name]["step_time_s"])
    assert known["fsdp2"] == known[quicker]
    assert plan.baseline_strategy("fsdp2") == plan.baseline_strategy(quicker)


def test_fsdp2_gathers_for_each_use_where_nothing_else_fits() -> None:
    names = ("zero1", "zero3", "fsdp2")
    known = plan_of("zoo:gpt2-demo", 16).document["baselines"]
    once, each = (known[name]["memory_bytes_per_device"] for name in names[:2])
    assert each < once
    options = PlanOptions(global_batch=16, micro_batch=16, memory_limit_bytes=(once + each) // 2, baselines=names)
    plan = make_plan(graph_of("zoo:gpt2-demo"), load_cluster("local:2x2"), options=options)
    assert [plan.document["baselines"][name]["feasible"] for name in names] == [False, True, True]
    assert plan.baseline_strategy("fsdp2") == plan.baseline_strategy("zero3")


@pytest.mark.parametrize("model", MODELS)
def test_megatron_lm_stores_parameters_over_the_axes_that_hold_them_alike(model: str) -> None:
    """Those that one op reads whole, or in parts, with all of their gradients."""
    strategy, graph = plan_of(model).baseline_strategy("megatron_lm"), graph_of(model)
    assert strategy.gather == "step"
    used, readers = (
        used_layouts(graph, strategy.signatures),
        Counter(ref.name for node in graph.nodes for ref in node.refs()),
    )
    leaves = [leaf for leaf in graph.parameters if readers[leaf.name] == 1 and P not in used[leaf.name]]
    assert len(leaves) > 3
    for leaf in leaves:
        assert strategy.parameters[leaf.name] == sharded_layout(leaf, used[leaf.name], strategy.mesh), leaf.name


def test_megatron_lm_has_the_stages_of_megatron_and_the_layouts_of_sequence_parallelism() -> None:
    names = ("megatron_sp", "megatron_lm")
    options = PlanOptions(global_batch=16, stages=2, baselines=names)
    plan = make_plan(graph_of("zoo:gpt2-demo"), load_cluster("local:2x2"), options=options)
    as_used, apart = (plan.baseline_strategy(name) for name in names)
    assert as_used.num_stages == apart.num_stages == 2
    known = plan.document["baselines"]
    held = [known[name]["memory_breakdown"]["optimizer"] for name in names]
    assert held[1] < 0.7 * held[0]


@pytest.mark.some(2)
@pytest.mark.parametrize(
    ("model", "cluster", "batch"),
    [
        ("zoo:gpt2", "dgx-a100-40g:1", 64),
        ("zoo:resnet50", "piz-daint:4", 256),
        ("zoo:wide-deep-small", "local:2x2", 16),
        ("zoo:moe-small", "local:2x2", 16),
    ],
)
def test_no_default_baseline_beats_the_plan(model: str, cluster: str, batch: int) -> None:
    document = make_plan(graph_of(model), load_cluster(cluster), options=PlanOptions(global_batch=batch)).document
    assert tuple(document["baselines"]) == DEFAULT_BASELINES
    feasible = [entry["step_time_s"] for entry in document["baselines"].values() if entry["feasible"]]
    assert len(feasible) == len(DEFAULT_BASELINES)
    assert document["lower_bound_s"] <= document["step_time_s"] <= min(feasible)


def test_storage_apart_is_searched_so_that_a_baseline_which_uses_it_adds_nothing() -> None:
    """ZeRO is faster here: it steps a part of the parameters on each device."""
    graph, cluster = graph_of("zoo:gpt2-demo"), load_cluster("local:2x2")
    with_zero, without = (
        make_plan(graph, cluster, options=PlanOptions(global_batch=16, stages=1, baselines=names)).document
        for names in (("zero1",), ("data_parallel",))
    )
    assert with_zero["baselines"]["zero1"]["step_time_s"] < without["baselines"]["data_parallel"]["step_time_s"]
    for name in ("strategy", "step_time_s", "lower_bound_s"):
        assert with_zero[name] == without[name]


@pytest.mark.parametrize("names", [("zero4",), ("zero3", "zero3"), ["zero3"]])
def test_unknown_and_repeated_baselines_are_refused(names: tuple[str, ...]) -> None:
    with pytest.raises(InputError, match="baselines"):
        PlanOptions(baselines=names)


def test_a_baseline_that_does_not_fit_says_so() -> None:
    options = PlanOptions(global_batch=16, memory_limit_bytes=84_000_000, baselines=("data_parallel", "zero3"))
    document = make_plan(graph_of("zoo:gpt2-demo"), load_cluster("local:2x2"), options=options).document
    assert not document["baselines"]["data_parallel"]["feasible"]
    assert document["baselines"]["zero3"]["feasible"]
    assert document["baselines"]["zero3"]["memory_bytes_per_device"] <= 84_000_000
    with pytest.raises(InfeasibleError):
        make_plan(
            graph_of("zoo:gpt2-demo"), load_cluster("local:2x2"),
            options=PlanOptions(global_batch=16, memory_limit_bytes=10_000_000, baselines=("zero3",)),
        )  # fmt: skip
