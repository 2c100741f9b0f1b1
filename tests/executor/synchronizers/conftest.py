"""One run of four real ranks trains every case once; the tests of this folder read its report."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from autosbp.api import LogicalGraph, PlanOptions, capture, load_cluster, make_plan
from autosbp.launch.local import run_ranks
from autosbp.plan.plan import Strategy
from autosbp.plan.schedules import INTERLEAVED, ONE_F_ONE_B, ZERO_BUBBLE
from autosbp.plan.synchronizers import (
    BF16,
    FP16,
    PARAMETER_SERVER,
    POWER_SGD,
    TOP_K,
    Compressor,
    ParameterSync,
    Partition,
    SyncStrategy,
)
from autosbp.program.parameter_sharding import shard_parameters
from autosbp.sbp.layout import B
from autosbp.search.sync_builders import BUILDERS, CHUNKED, with_sync
from autosbp.testing.strategy_samples import sample_strategies
from tests.executor.pipeline.strategies import LAYOUTS, pipelined
from tests.tiers import form

CLUSTER = load_cluster("local:2x2")
TURNS = (("g0",), ("n0",))
AVERAGED = {
    *("lossy bf16", "lossy power_sgd", "lossy top_k", "lossy power_sgd hierarchical", "lossy fp16 server"),
    *("lossy power_sgd without feedback", "lossy top_k without feedback"),
}
"""Cases whose gradients are averaged over many steps."""
Reports = dict[str, list[dict[str, Any]]]


def data_parallel(graph: LogicalGraph, global_batch: int = 16, optimizer: str = "adamw") -> Strategy:
    options = PlanOptions(
        global_batch=global_batch, micro_batch=16, stages=1, optimizer=optimizer, baselines=("data_parallel",)
    )
    return make_plan(graph, CLUSTER, None, options).baseline_strategy("data_parallel")


def everywhere(strategy: Strategy, sync: ParameterSync) -> Strategy:
    """The same configuration for every parameter."""
    return replace(strategy, sync=SyncStrategy(4, dict.fromkeys(strategy.parameters, sync)))


def built(model: str, graph: LogicalGraph, strategy: Strategy) -> dict[str, Strategy]:
    """Every builder, with all variables in one message and with two in each."""
    found = {}
    for name in BUILDERS:
        for chunk in (2, 128) if name in CHUNKED else (None,):
            found[f"{model} {name} {chunk}"] = with_sync(graph, strategy, CLUSTER, name, chunk)
    return found


def compositions(model: str, graph: LogicalGraph, strategy: Strategy) -> dict[str, Strategy]:
    """Two or more kernels at once, in all pairs that keep the mathematics."""
    sgd = data_parallel(graph, optimizer="sgd")
    halves, thirds = Partition(0, 2), Partition(0, 3)
    found = {
        "partition, hierarchical all-reduce": everywhere(
            sgd, ParameterSync(groups=(0, 1), partition=halves, order=TURNS)
        ),
        "hierarchical all-reduce, nodes first": everywhere(strategy, ParameterSync(order=TURNS[::-1])),
        "partition, hierarchical server": everywhere(
            strategy, ParameterSync(PARAMETER_SERVER, (0, 0, 0), thirds, (3, 1, 0), TURNS)
        ),
        "server, nodes first": everywhere(sgd, ParameterSync(PARAMETER_SERVER, destinations=(2,), order=TURNS[::-1])),
        "uneven partition, all-reduce": everywhere(sgd, ParameterSync(groups=(0, 1, 0), partition=thirds)),
    }
    mixed, kinds = {}, (ParameterSync(), ParameterSync(PARAMETER_SERVER, destinations=(1,)), ParameterSync(order=TURNS))
    for at, name in enumerate(strategy.parameters):
        if at % 4 < 3:
            mixed[name] = kinds[at % 4]
    found["a kernel for each parameter, default buckets for some"] = replace(strategy, sync=SyncStrategy(4, mixed))
    accumulated = data_parallel(graph, global_batch=32)
    for name in ("ps_hierarchical", "all_reduce_hierarchical", "all_reduce_partitioned"):
        found[f"microbatches, {name}"] = with_sync(graph, accumulated, CLUSTER, name, 3)
    return {f"{model} {label}": each for label, each in found.items()}


def sparse(model: str, graph: LogicalGraph, strategy: Strategy) -> dict[str, Strategy]:
    """Rounds: fewer rows in a message than a batch touches."""
    found = {}
    for name in ("sparse_all_gather", "parallax"):
        whole = with_sync(graph, strategy, CLUSTER, name)
        assert whole.sync is not None
        few = {
            each: replace(sync, sparse_rows=1) if sync.sparse_rows else sync
            for each, sync in whole.sync.parameters.items()
        }
        found[f"{model} {name} in rounds"] = replace(whole, sync=SyncStrategy(4, few))
    cut = ParameterSync(PARAMETER_SERVER, (0, 0, 0), Partition(0, 3), (3, 0, 1), sparse_rows=3)
    tables = {name: cut for name in strategy.parameters if name.startswith(("tables", "wide"))}
    found[f"{model} sparse rows of three servers"] = replace(strategy, sync=SyncStrategy(4, tables))
    return found


def layouts(graph: LogicalGraph) -> dict[str, Strategy]:
    """Beside tensor parallelism, ZeRO storage and pipelines: each reduction group is synchronized by itself."""
    found = {}
    sampled = sample_strategies(graph, CLUSTER, 12, global_batch=8, micro_batch=8)
    for name in ("ps_partitioned", "all_reduce_hierarchical"):
        for at, strategy in enumerate(sampled[: form(1, 3)]):
            found[f"sampled {at} {name}"] = with_sync(graph, strategy, CLUSTER, name, 2)
            stored = shard_parameters(graph, strategy, "step")
            found[f"sampled {at} stored apart {name}"] = with_sync(graph, stored, CLUSTER, name, 2)
    return found


def stages(graph: LogicalGraph) -> dict[str, Strategy]:
    found = {}
    stage = LAYOUTS["data parallel"](graph, 2)
    for schedule, chunks in form(
        ((INTERLEAVED, 2), (ZERO_BUBBLE, 1)), ((ONE_F_ONE_B, 1), (INTERLEAVED, 2), (ZERO_BUBBLE, 1))
    ):
        strategy = pipelined(graph, stage, 2, schedule, chunks)
        for name in ("ps_partitioned", "all_reduce_partitioned"):
            found[f"stages {schedule.name} {name}"] = with_sync(graph, strategy, load_cluster("local:2"), name, 2)
    return found


def stored_split(graph: LogicalGraph, strategy: Strategy) -> dict[str, Strategy]:
    """ZeRO: reduce-scatters in two messages, exact and in 16 bits."""
    stored = shard_parameters(graph, strategy, "step")
    names = [name for name, layout in stored.parameters.items() if B not in layout]
    assert len(names) > 2
    found = {}
    for label, compressor in (("stored split", None), ("lossy fp16 stored split", Compressor(FP16))):
        syncs = {name: ParameterSync(groups=(at % 2,), compressor=compressor) for at, name in enumerate(names)}
        found[label] = replace(stored, sync=SyncStrategy(1, syncs))
    return found


def lossy(strategy: Strategy) -> dict[str, Strategy]:
    found = {}
    for name in (FP16, BF16, POWER_SGD, TOP_K):
        for feedback in (True, False):
            compressor = Compressor(name, rank=2, ratio=0.05, error_feedback=feedback)
            label = f"lossy {name}" + ("" if feedback else " without feedback")
            found[label] = everywhere(strategy, ParameterSync(compressor=compressor))
    half = Compressor(FP16)
    found["lossy fp16 hierarchical"] = everywhere(strategy, ParameterSync(compressor=half, order=TURNS))
    found["lossy power_sgd hierarchical"] = everywhere(
        strategy, ParameterSync(compressor=Compressor(POWER_SGD, rank=2), order=TURNS)
    )
    found["lossy fp16 server"] = everywhere(
        strategy, ParameterSync(PARAMETER_SERVER, destinations=(1,), compressor=half, order=TURNS)
    )
    return found


def stale(strategy: Strategy) -> dict[str, Strategy]:
    return {
        f"stale {steps}": everywhere(strategy, ParameterSync(PARAMETER_SERVER, destinations=(2,), staleness=steps))
        for steps in (1, 2)
    }


@pytest.fixture(scope="session")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Reports:
    folder = tmp_path_factory.mktemp("synchronizers")
    mlp, tables = capture("zoo:mlp-small"), capture("zoo:wide-deep-small")
    dense, looked_up = data_parallel(mlp), data_parallel(tables)
    of_mlp = {
        **built("mlp", mlp, dense), **compositions("mlp", mlp, dense), **layouts(mlp), **stages(mlp),
        **stored_split(mlp, dense), **lossy(dense), **stale(dense),
    }  # fmt: skip
    of_tables = {**built("tables", tables, looked_up), **sparse("tables", tables, looked_up)}
    cases = [
        {
            "graph": graph.to_dict(),
            "strategies": [
                {"label": label, "strategy": each.to_dict(), "feedback": label in AVERAGED}
                for label, each in strategies.items()
            ],
        }
        for graph, strategies in ((mlp, of_mlp), (tables, of_tables))
    ]
    (folder / "request.json").write_text(json.dumps({"cases": cases}))
    outcome = run_ranks(
        "tests.executor.synchronizers.worker",
        [str(folder / "request.json"), str(folder / "result.json")],
        4,
        folder / "log",
        timeout_s=170,
    )
    assert outcome.reason == "", outcome.log_tail
    found: Reports = json.loads((folder / "result.json").read_text())
    return found
