"""The compared strategies in our layouts: what the other side's wrapper does to the model."""

from __future__ import annotations

from dataclasses import replace

from autosbp.cluster.spec import load_cluster
from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.network import NetworkModel
from autosbp.graph.ir import LogicalGraph
from autosbp.plan.plan import Strategy
from autosbp.program.parameter_sharding import shard_parameters
from autosbp.search import SEARCHERS, SearchOptions
from autosbp.search.problem.baselines import Roles
from autosbp.search.problem.builder import ProblemBuilder
from autosbp.search.problem.builder_base import Allowed
from autosbp.search.problem.mesh_views import tensor_parallel_view
from autosbp.search.problem.op_clusters import OpCluster
from autosbp.search.problem.strategy import strategy_of


def data_parallel(graph: LogicalGraph, num_ranks: int, batch: int) -> Strategy:
    """Split only the batch."""
    return data_parallel_on(graph, f"local:{num_ranks}", batch)


def data_parallel_on(graph: LogicalGraph, cluster: str, batch: int) -> Strategy:
    """Split only the batch, on a cluster of a preset."""
    roles = Roles(graph)
    return _best(graph, cluster, batch, lambda op_cluster, _, option: roles.data_axis(op_cluster, option))


def stored_split(graph: LogicalGraph, num_ranks: int, batch: int, gather: str, message: int) -> Strategy:
    """Data parallel with sharded parameters; ``message`` bytes of them are gathered at a time."""
    strategy = shard_parameters(graph, data_parallel(graph, num_ranks, batch), gather)
    return replace(strategy, bucket_bytes=message)


def megatron(
    graph: LogicalGraph, num_ranks: int, batch: int, columns: tuple[str, ...], rows: tuple[str, ...]
) -> Strategy:
    """Split the named linear layers by output or by input; replicate every other op with parameters."""
    roles = Roles(graph)

    def allowed(cluster: OpCluster, _: int, option: int) -> bool:
        chosen = cluster.options[option][0]
        owned = [ref.name for ref in cluster.nodes[0].refs() if ref.name in graph.parameter_names]
        if any(_layer(name).endswith(columns) for name in owned):
            return chosen.factor == "n"
        if any(_layer(name).endswith(rows) for name in owned):
            return chosen.factor == "k"
        return chosen.factor == "I" if owned else roles.tensor_axis(cluster, option)

    return _best(graph, f"local:{num_ranks}", batch, allowed)


def tensor_parallel(graph: LogicalGraph, cluster: str, num_tensor_axes: int, batch: int) -> Strategy:
    """Megatron-like grid for any model.

    The cluster's innermost prime axes split or replicate every op with parameters, whichever is cheapest; the other
    axes split the batch.
    """
    roles, tensor_axes = Roles(graph), tensor_parallel_view(load_cluster(cluster).mesh(), num_tensor_axes)[1]

    def allowed(ops: OpCluster, axis: int, option: int) -> bool:
        return (roles.tensor_axis if axis in tensor_axes else roles.data_axis)(ops, option)

    return _best(graph, cluster, batch, allowed, num_tensor_axes)


def _layer(parameter: str) -> str:
    """Name of the parameter's module, without ``weight`` or ``bias`` and a suffix after it."""
    return parameter.rpartition(".weight")[0] or parameter.rpartition(".bias")[0]


def _best(graph: LogicalGraph, name: str, batch: int, allowed: Allowed, num_tensor_axes: int = 0) -> Strategy:
    cluster = load_cluster(name)
    mesh = tensor_parallel_view(cluster.mesh(), num_tensor_axes)[0]
    bound = graph.bind(**dict.fromkeys(graph.symbols, batch))
    boxing = BoxingModel(NetworkModel(cluster), mesh)
    builder = ProblemBuilder(bound, boxing, ComputeModel(cluster.device), num_micro=1, optimizer="adamw")
    built = builder.build(None, allowed)
    result = SEARCHERS["exact"](built.problem, SearchOptions())
    return strategy_of(
        built, result.assignment, bound, boxing, global_batch=batch, micro_batch=batch, optimizer="adamw"
    )
