"""Pipelined strategies for tests: layouts inside a stage, cuts anywhere, every schedule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from autosbp.api import load_graph
from autosbp.cluster.spec import load_cluster
from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.network import NetworkModel
from autosbp.graph.ir import LogicalGraph
from autosbp.plan.pipeline import Pipeline
from autosbp.plan.plan import Strategy
from autosbp.plan.schedules import GPIPE, INTERLEAVED, ONE_F_ONE_B, ZERO_BUBBLE, Schedule
from autosbp.program.parameter_sharding import shard_parameters
from autosbp.search import SEARCHERS, SearchOptions
from autosbp.search.problem.baselines import Roles
from autosbp.search.problem.builder import ProblemBuilder
from autosbp.search.problem.builder_base import Allowed
from autosbp.search.problem.op_clusters import OpCluster
from autosbp.search.problem.strategy import strategy_of

MICRO = 4
FLOAT = {"dtype": "float32"}
SCHEDULES = ((GPIPE, 1), (ONE_F_ONE_B, 1), (INTERLEAVED, 2), (ZERO_BUBBLE, 1), (ZERO_BUBBLE, 2))
"""Schedules with the chunks that a stage has."""


def gated() -> LogicalGraph:
    """loss = sum(((X U)^T V * (X U > 0)^T)^T W)^2: cut in four, the gate, which has no gradient, crosses with a value that
    has one, and both transposes do, whose strides are those of no fresh tensor at a batch of one."""

    def node(name: str, op: str, args: list[object], shape: list[object], dtype: str = "float32") -> dict[str, object]:
        refs = [{"ref": arg} if isinstance(arg, str) else arg for arg in args]
        return {"name": name, "op": f"aten.{op}", "args": refs, "outputs": [{"shape": shape, "dtype": dtype}]}

    batch_first, batch_second = ["batch", 4, 64], [4, "batch", 64]
    return load_graph({
        "schema": "autosbp.graph/1",
        "name": "gated",
        "symbols": {"batch": 8},
        "parameters": [{"name": name, "shape": [64, 64], **FLOAT} for name in "uvw"],
        "inputs": [{"name": "x", "shape": batch_first, **FLOAT}],
        "constants": [],
        "nodes": [
            node("xu", "linear.default", ["x", "u"], batch_first),
            node("turned", "permute.default", ["xu", [1, 0, 2]], batch_second),
            node("gate", "gt.Scalar", ["turned", 0], batch_second, "bool"),
            node("uv", "linear.default", ["turned", "v"], batch_second),
            node("kept", "mul.Tensor", ["uv", "gate"], batch_second),
            node("back", "permute.default", ["kept", [1, 0, 2]], batch_first),
            node("vw", "linear.default", ["back", "w"], batch_first),
            node("square", "pow.Tensor_Scalar", ["vw", 2], batch_first),
            node("loss", "sum.default", ["square"], []),
        ],
        "loss": {"ref": "loss"},
    })  # fmt: skip


def one_stage(graph: LogicalGraph, size: int, micro_batch: int, allowed: Allowed | None = None) -> Strategy:
    """The best strategy of one stage's devices; ``num_micro`` is 4."""
    cluster = load_cluster(f"local:{size}")
    mesh = cluster.mesh()
    bound = graph.bind(**dict.fromkeys(graph.symbols, micro_batch))
    boxing = BoxingModel(NetworkModel(cluster), mesh)
    builder = ProblemBuilder(bound, boxing, ComputeModel(cluster.device), num_micro=MICRO, optimizer="adamw")
    built = builder.build(None, allowed)
    result = SEARCHERS["exact"](built.problem, SearchOptions())
    return strategy_of(
        built, result.assignment, bound, boxing, global_batch=MICRO * micro_batch, micro_batch=micro_batch,
        optimizer="adamw",
    )  # fmt: skip


def data_parallel(graph: LogicalGraph, size: int) -> Strategy:
    roles = Roles(graph)
    return one_stage(graph, size, 2, lambda cluster, _, option: roles.data_axis(cluster, option))


def tensor_parallel(graph: LogicalGraph, size: int) -> Strategy:
    """Every linear layer split, by its output or its input."""
    roles = Roles(graph)

    def allowed(cluster: OpCluster, _: int, option: int) -> bool:
        linear = cluster.nodes[0].op == "aten.linear.default"
        return cluster.options[option][0].factor in ("n", "k") if linear else roles.tensor_axis(cluster, option)

    return one_stage(graph, size, 2, allowed)


LAYOUTS: Mapping[str, Callable[[LogicalGraph, int], Strategy]] = {
    "data parallel": data_parallel,
    "tensor parallel": tensor_parallel,
    "ZeRO-1": lambda graph, size: shard_parameters(graph, data_parallel(graph, size), "step"),
    "ZeRO-3": lambda graph, size: replace(
        shard_parameters(graph, data_parallel(graph, size), "use"), bucket_bytes=20_000
    ),
    "whole": lambda graph, size: one_stage(graph, size, 1),
}


def even_cuts(graph: LogicalGraph, num_chunks: int, shift: int = 0) -> tuple[str, ...]:
    """Cuts that leave equally many ops in each chunk, wherever that is."""
    names = [node.name for node in graph.nodes if node.name in graph.parameter_dependent]
    return tuple(names[len(names) * chunk // num_chunks + shift] for chunk in range(1, num_chunks))


def pipelined(
    graph: LogicalGraph, strategy: Strategy, stages: int, schedule: Schedule, virtual: int = 1, shift: int = 0
) -> Strategy:
    cuts = even_cuts(graph, stages * virtual, shift)
    return replace(strategy, pipeline=Pipeline(stages, cuts, schedule))
