"""The strategies that are compared, as ours: what the other side's wrapper does to the model, said in layouts."""

from __future__ import annotations

from dataclasses import replace

from autosbp.cluster import load_cluster
from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.network import NetworkModel
from autosbp.graph.ir import LogicalGraph
from autosbp.plan import Strategy
from autosbp.sbp.storage import store_split
from autosbp.search import SEARCHERS, SearchOptions
from autosbp.search._baselines import Roles
from autosbp.search._build import Allowed, ProblemBuilder
from autosbp.search._clusters import OpCluster
from autosbp.search._strategy import strategy_of
from autosbp.search._views import tensor_parallel_view


def data_parallel(graph: LogicalGraph, num_ranks: int, batch: int) -> Strategy:
    """Only the batch is split."""
    roles = Roles(graph)
    return _best(graph, num_ranks, batch, lambda cluster, _, option: roles.data_axis(cluster, option))


def stored_split(graph: LogicalGraph, num_ranks: int, batch: int, gather: str, message: int) -> Strategy:
    """Data parallel with parameters stored in parts; ``message`` bytes of them are gathered at a time."""
    strategy = store_split(graph, data_parallel(graph, num_ranks, batch), gather)
    return replace(strategy, bucket_bytes=message)


def megatron(
    graph: LogicalGraph, num_ranks: int, batch: int, columns: tuple[str, ...], rows: tuple[str, ...]
) -> Strategy:
    """The named linear layers are split by output or by input; every other op with parameters is repeated."""
    roles = Roles(graph)

    def allowed(cluster: OpCluster, _: int, option: int) -> bool:
        chosen = cluster.options[option][0]
        owned = [ref.name for ref in cluster.nodes[0].refs() if ref.name in graph.parameter_names]
        if any(_layer(name).endswith(columns) for name in owned):
            return chosen.factor == "n"
        if any(_layer(name).endswith(rows) for name in owned):
            return chosen.factor == "k"
        return chosen.factor == "I" if owned else roles.tensor_axis(cluster, option)

    return _best(graph, num_ranks, batch, allowed)


def _layer(parameter: str) -> str:
    """The module's name: the parameter's without ``weight`` and what it was cut by."""
    return parameter.rpartition(".weight")[0] or parameter.rpartition(".bias")[0]


def _best(graph: LogicalGraph, num_ranks: int, batch: int, allowed: Allowed) -> Strategy:
    cluster = load_cluster(f"local:{num_ranks}")
    mesh = tensor_parallel_view(cluster.mesh(), 0)[0]
    bound = graph.bind(**dict.fromkeys(graph.symbols, batch))
    boxing = BoxingModel(NetworkModel(cluster), mesh)
    builder = ProblemBuilder(bound, boxing, ComputeModel(cluster.device), num_micro=1, optimizer="adamw")
    built = builder.build(None, allowed)
    result = SEARCHERS["exact"](built.problem, SearchOptions())
    return strategy_of(
        built, result.assignment, bound, boxing, global_batch=batch, micro_batch=batch, optimizer="adamw"
    )
