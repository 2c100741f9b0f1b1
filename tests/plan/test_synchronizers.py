"""Synchronization strategies as data: JSON, words, and what is refused by name."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from autosbp.api import LogicalGraph, load_cluster, load_graph
from autosbp.errors import InputError
from autosbp.plan.plan import Strategy
from autosbp.plan.synchronizers import (
    COMPRESSORS,
    FP16,
    PARAMETER_SERVER,
    POWER_SGD,
    TOP_K,
    Compressor,
    ParameterSync,
    Partition,
    SyncStrategy,
)
from autosbp.program.parameter_flow import parameter_flow
from autosbp.report.plan_diff import difference
from autosbp.search.planner import make_plan
from autosbp.search.sync_builders import BUILDERS, with_sync

CLUSTER = load_cluster("local:2x2")
SERVER = ParameterSync(PARAMETER_SERVER, destinations=(1,))


def lookup_model() -> LogicalGraph:
    """loss = sum(linear(table[ids], weight, shift)^2), with one table of integers that nothing trains."""
    double = {"dtype": "float32"}

    def node(name: str, op: str, args: list[str], width: int) -> dict[str, object]:
        refs = [{"ref": arg} if isinstance(arg, str) else arg for arg in args]
        return {"name": name, "op": f"aten.{op}", "args": refs, "outputs": [{"shape": ["batch", width], **double}]}

    return load_graph({
        "schema": "autosbp.graph/1",
        "name": "lookup",
        "symbols": {"batch": 8},
        "parameters": [
            {"name": "table", "shape": [64, 32], **double},
            {"name": "weight", "shape": [512, 512], **double},
            {"name": "shift", "shape": [512], **double},
            {"name": "frozen", "shape": [512], **double, "trained": False},
        ],
        "inputs": [
            {"name": "ids", "shape": ["batch"], "dtype": "int64", "high": 64},
            {"name": "x", "shape": ["batch", 480], **double},
        ],
        "constants": [],
        "nodes": [
            node("rows", "embedding.default", ["table", "ids"], 32),
            {"name": "joined", "op": "aten.cat.default", "args": [[{"ref": "rows"}, {"ref": "x"}], 1],
             "outputs": [{"shape": ["batch", 512], **double}]},
            node("out", "linear.default", ["joined", "weight", "shift"], 512),
            node("scaled", "mul.Tensor", ["out", "frozen"], 512),
            {"name": "square", "op": "aten.pow.Tensor_Scalar", "args": [{"ref": "scaled"}, 2],
             "outputs": [{"shape": ["batch", 512], **double}]},
            {"name": "loss", "op": "aten.sum.default", "args": [{"ref": "square"}], "outputs": [{"shape": [], **double}]},
        ],
        "loss": {"ref": "loss"},
    })  # fmt: skip


@pytest.fixture(scope="module")
def graph() -> LogicalGraph:
    return lookup_model()


@pytest.fixture(scope="module")
def plan(graph: LogicalGraph) -> Any:
    from autosbp.search.plan_options import PlanOptions

    return make_plan(graph, CLUSTER, None, PlanOptions(global_batch=8, stages=1, baselines=("data_parallel",)))


@pytest.fixture(scope="module")
def strategy(plan: Any) -> Strategy:
    found: Strategy = plan.baseline_strategy("data_parallel")
    return found


def with_parameters(strategy: Strategy, **parameters: ParameterSync) -> Strategy:
    return replace(strategy, sync=SyncStrategy(4, parameters))


def test_every_builder_survives_json(graph: LogicalGraph, strategy: Strategy) -> None:
    for name in BUILDERS:
        built = with_sync(graph, strategy, CLUSTER, name)
        assert Strategy.from_dict(json.loads(json.dumps(built.to_dict()))) == built, name


def test_every_field_survives_json() -> None:
    syncs = {
        "a": ParameterSync(PARAMETER_SERVER, (3, 3), Partition(1, 2), (0, 2), (("g0",), ("n0",)), Compressor(FP16), 2),
        "b": ParameterSync(compressor=Compressor(POWER_SGD, rank=3, error_feedback=False)),
        "c": ParameterSync(compressor=Compressor(TOP_K, ratio=0.25)),
        "d": ParameterSync(sparse_rows=7),
    }
    for name in COMPRESSORS:
        syncs[name] = ParameterSync(compressor=Compressor(name))
    sync = SyncStrategy(4, syncs)
    assert SyncStrategy.from_dict(json.loads(json.dumps(sync.to_dict()))) == sync
    assert not sync.is_exact and SyncStrategy(4, {"d": syncs["d"]}).is_exact


def test_a_strategy_without_synchronizers_keeps_its_bytes(strategy: Strategy) -> None:
    assert "sync" not in strategy.to_dict()
    assert Strategy.from_dict(strategy.to_dict()).sync is None


def test_words_name_all_choices() -> None:
    sync = ParameterSync(
        PARAMETER_SERVER, (1, 1), Partition(0, 2), (0, 2), (("g0",), ("n0",)), Compressor(FP16), staleness=2
    )
    assert (
        str(sync)
        == "parameter-server at 0,2 in 2 shards of dim 0 over g0 then n0 as fp16 (lossy) 2 steps late (stale) [1,1]"
    )


def test_two_plans_differ_by_parameter(graph: LogicalGraph, plan: Any, strategy: Strategy) -> None:
    one, two = (
        {**plan.document, "strategy": with_sync(graph, strategy, CLUSTER, name).to_dict()}
        for name in ("all_reduce", "ps")
    )
    assert difference(one, two)["sync"]["table"] == {"a": "all-reduce [0]", "b": "parameter-server at 0 [0]"}
    assert "sync" not in difference(plan.document, plan.document)


def test_a_strategy_moves_to_another_plan_of_the_model(graph: LogicalGraph, strategy: Strategy) -> None:
    built = with_sync(graph, strategy, CLUSTER, "ps_hierarchical").sync
    assert built is not None
    other = replace(strategy, sync=SyncStrategy.from_dict(built.to_dict()), bucket_bytes=1024)
    bound = graph.bind(batch=8)
    assert [bucket.message for bucket in parameter_flow(bound, other).buckets if bucket.message]


REFUSED = {
    "unknown variable": ({"nothing": ParameterSync()}, "nothing", "parameter of the model"),
    "frozen": ({"frozen": ParameterSync()}, "frozen", "no gradient"),
    "dim out of range": ({"shift": ParameterSync(groups=(0, 1), partition=Partition(1, 2))}, "partition", "dim below 1"),
    "too many shards": (
        {"table": ParameterSync(groups=tuple(range(65)), partition=Partition(0, 65))}, "partition", "64 rows",
    ),
    "destination outside of the mesh": (
        {"table": ParameterSync(PARAMETER_SERVER, destinations=(4,))}, "destinations[0]", "4 replicas",
    ),
    "unknown axis": ({"table": ParameterSync(order=(("g0",), ("x9",)))}, "order", "n0, g0"),
    "axis left out": ({"table": ParameterSync(order=(("g0",),))}, "order", "n0, g0"),
    "sparse rows of a dense parameter": ({"weight": ParameterSync(sparse_rows=2)}, "sparse_rows", "embedding"),
    "staleness of an all-reduce": ({"table": ParameterSync(staleness=1)}, "staleness", "parameter server"),
    "power_sgd at a server": (
        {"table": replace(SERVER, compressor=Compressor(POWER_SGD))}, "compressor", "fp16 or bf16",
    ),
    "labels": ({"table": ParameterSync(groups=(0, 1))}, "groups", "1 shards"),
    "destination of an all-reduce": ({"table": ParameterSync(destinations=(0,))}, "destinations", "no destination"),
    "sparse with compressor": (
        {"table": ParameterSync(sparse_rows=1, compressor=Compressor(FP16))}, "sparse_rows", "no compressor",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_by_name(graph: LogicalGraph, strategy: Strategy, case: str) -> None:
    parameters, field, words = REFUSED[case]
    with pytest.raises(InputError) as error:
        parameter_flow(graph.bind(batch=8), with_parameters(strategy, **parameters))
    assert field in error.value.field and words in error.value.limit
    assert error.value.field.startswith("strategy.sync.parameters.")


def test_a_compressor_of_an_integer_tensor_is_refused(strategy: Strategy) -> None:
    document = json.loads(json.dumps(lookup_model().to_dict()))
    document["parameters"].append({"name": "counts", "shape": [4], "dtype": "int64", "trained": False})
    graph = load_graph(document)
    counted = replace(strategy, parameters={**strategy.parameters, "counts": strategy.parameters["shift"]})
    with pytest.raises(InputError, match="floating-point") as error:
        parameter_flow(graph.bind(batch=8), with_parameters(counted, counts=ParameterSync(compressor=Compressor(FP16))))
    assert error.value.value == "frozen int64"


def test_a_number_of_replicas_other_than_the_layouts_is_refused(graph: LogicalGraph, strategy: Strategy) -> None:
    with pytest.raises(InputError, match="4 replicas"):
        parameter_flow(graph.bind(batch=8), replace(strategy, sync=SyncStrategy(8, {"table": ParameterSync()})))


@pytest.mark.parametrize(
    ("member", "value", "field"),
    [
        ("synchronizer", "gossip", "synchronizer"),
        ("partition", [0, 1], "partition"),
        ("order", ["g0"], "order"),
        ("compressor", {"name": "zip"}, "compressor.name"),
        ("compressor", {"name": "fp16", "rank": 2}, "compressor.rank"),
        ("compressor", {"name": "top_k", "ratio": 0}, "compressor.ratio"),
        ("staleness", -1, "staleness"),
        ("groups", [0.5], "groups[0]"),
        ("other", 1, "other"),
    ],
)
def test_malformed_members_are_named(member: str, value: object, field: str) -> None:
    document = {"schema": "autosbp.sync/1", "replicas": 4, "parameters": {"w": {member: value}}}
    with pytest.raises(InputError) as error:
        SyncStrategy.from_dict(document, "sync")
    assert error.value.field == f"sync.parameters.w.{field}"
