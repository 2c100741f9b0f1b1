"""Builders of synchronization strategies: published systems, expressed with one set of kernels (AutoDist section 3).

A builder is a function ``(graph, strategy, cluster) -> SyncStrategy`` that keeps the strategy's layouts.
``with_sync(graph, strategy, cluster, "parallax")`` returns the strategy with the builder's synchronization.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod

from autosbp.cluster.spec import Cluster
from autosbp.errors import InputError
from autosbp.graph.ir import LogicalGraph
from autosbp.graph.pipeline_chunks import cut_graph
from autosbp.plan.plan import BUCKET_BYTES, Strategy
from autosbp.plan.synchronizers import PARAMETER_SERVER, ParameterSync, Partition, SyncStrategy
from autosbp.program.sync_checks import gradient_reduction_axes, lookup_parameters, lookups_per_replica
from autosbp.sbp.layout import local_shape
from autosbp.sbp.mesh import Mesh

Builder = Callable[[LogicalGraph, Strategy, Cluster], SyncStrategy]
CHUNK = 128
"""Default number of adjacent variables in one message, as in AutoDist (section 3.2)."""
PARTITION_BYTES = 256 * 1024
"""Minimum size of a gradient that builders partition; for smaller ones, latency costs more than balance saves."""
FIRST_BUCKET_BYTES = 2**20
"""Size of DistributedDataParallel's first bucket, which starts communication early."""
FUSION_BYTES = 64 * 2**20
"""Horovod's fusion threshold."""


@dataclass(frozen=True, slots=True)
class Variable:
    """A trained parameter whose gradient is reduced.

    Args:
        name: name of the parameter.
        shape: shape of the part that a device stores.
        num_bytes: bytes of a device's gradient.
        axes: mesh axes over which the gradient is reduced.
    """

    name: str
    shape: tuple[int, ...]
    num_bytes: int
    axes: tuple[int, ...]

    def can_partition(self, dim: int) -> bool:
        """Whether builders split the variable along ``dim``."""
        return self.num_bytes >= PARTITION_BYTES and dim < len(self.shape) and self.shape[dim] > 1


def variables(graph: LogicalGraph, strategy: Strategy) -> list[Variable]:
    """Trained parameters that a synchronizer can reduce, in the model's order.

    Parameters that are sharded over all replicas (ZeRO), or that several pipeline stages read, are not among them: they
    use the default gradient reduction.
    """
    apart = _several_stages(graph, strategy)
    found = []
    for leaf in graph.trained:
        layout = strategy.parameters[leaf.name]
        axes = gradient_reduction_axes(layout)
        if axes and leaf.name not in apart:
            shape = local_shape(leaf.meta.sizes, layout, strategy.mesh)
            found.append(Variable(leaf.name, shape, prod(shape) * leaf.meta.gradient_width, axes))
    return found


def _several_stages(graph: LogicalGraph, strategy: Strategy) -> frozenset[str]:
    """Parameters that several chunks of a pipeline read."""
    if strategy.pipeline is None:
        return frozenset()
    bound = graph.bind(**dict.fromkeys(graph.symbols, strategy.micro_batch))
    once, more = set[str](), set[str]()
    for chunk in cut_graph(bound, strategy.pipeline.cuts):
        names = {leaf.name for leaf in chunk.parameters}
        more |= once & names
        once |= names
    return frozenset(more)


def _strategy(strategy: Strategy, syncs: Mapping[str, ParameterSync]) -> SyncStrategy:
    sizes = (strategy.mesh.group_size(gradient_reduction_axes(strategy.parameters[name])) for name in syncs)
    return SyncStrategy(max(sizes, default=1), dict(syncs))


def nodes_of_replicas(mesh: Mesh, axes: Sequence[int]) -> list[int]:
    """Node index of each replica of a reduction group; a node is a position along the axes of the outermost level."""
    outer = [at for at, axis in enumerate(axes) if mesh.axes[axis].level == 0]
    groups = mesh.group_ranks(axes, 0)
    places = [tuple(mesh.coordinate(rank)[axes[at]] for at in outer) for rank in groups]
    known = {place: node for node, place in enumerate(dict.fromkeys(places))}
    return [known[place] for place in places]


class _Servers:
    """Assigns variables to the replica with the fewest bytes, on the node with the fewest bytes."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self._loads: dict[tuple[int, ...], tuple[list[int], dict[int, int], dict[int, int]]] = {}

    def place(self, axes: tuple[int, ...], num_bytes: int) -> int:
        if axes not in self._loads:
            nodes = nodes_of_replicas(self.mesh, axes)
            self._loads[axes] = nodes, dict.fromkeys(nodes, 0), dict.fromkeys(range(len(nodes)), 0)
        nodes, by_node, by_replica = self._loads[axes]
        chosen = min(by_replica, key=lambda replica: (by_node[nodes[replica]], by_replica[replica], replica))
        by_node[nodes[chosen]] += num_bytes
        by_replica[chosen] += num_bytes
        return chosen

    def num_nodes(self, axes: tuple[int, ...]) -> int:
        return len(set(nodes_of_replicas(self.mesh, axes)))

    def shards(self, variable: Variable, dim: int = 0) -> int:
        """Number of shards: one for each node, or one for each replica if there is a single node."""
        nodes = self.num_nodes(variable.axes)
        return min(nodes if nodes > 1 else self.mesh.group_size(variable.axes), variable.shape[dim])


def all_reduce(graph: LogicalGraph, strategy: Strategy, _: Cluster, *, chunk: int = CHUNK) -> SyncStrategy:
    """One all-reduce for every ``chunk`` adjacent variables."""
    found = variables(graph, strategy)
    return _strategy(strategy, {each.name: ParameterSync(groups=(at // chunk,)) for at, each in enumerate(found)})


def parameter_server(graph: LogicalGraph, strategy: Strategy, _: Cluster, *, chunk: int = 1) -> SyncStrategy:
    """All variables on one server, the first replica."""
    return _strategy(
        strategy,
        {
            each.name: ParameterSync(PARAMETER_SERVER, (at // chunk,), destinations=(0,))
            for at, each in enumerate(variables(graph, strategy))
        },
    )


def balanced_parameter_server(
    graph: LogicalGraph, strategy: Strategy, _: Cluster, *, chunk: int = CHUNK
) -> SyncStrategy:
    """Whole variables, each on the server with the fewest bytes so far; nodes are balanced first."""
    servers = _Servers(strategy.mesh)
    return _strategy(
        strategy,
        {
            each.name: ParameterSync(
                PARAMETER_SERVER, (at // chunk,), destinations=(servers.place(each.axes, each.num_bytes),)
            )
            for at, each in enumerate(variables(graph, strategy))
        },
    )


def partitioned_parameter_server(
    graph: LogicalGraph, strategy: Strategy, _: Cluster, *, chunk: int = CHUNK
) -> SyncStrategy:
    """Large variables split into one shard per node; each shard on the server with the fewest bytes so far."""
    servers = _Servers(strategy.mesh)
    return _strategy(
        strategy,
        {
            each.name: _served(each, servers, at // chunk, partition=each.can_partition(0))
            for at, each in enumerate(variables(graph, strategy))
        },
    )


def _served(each: Variable, servers: _Servers, group: int, *, partition: bool) -> ParameterSync:
    shards = servers.shards(each) if partition else 1
    places = tuple(servers.place(each.axes, each.num_bytes // shards) for _ in range(shards))
    cut = Partition(0, shards) if shards > 1 else None
    return ParameterSync(PARAMETER_SERVER, (group,) * shards, cut, places)


def hierarchical_parameter_server(
    graph: LogicalGraph, strategy: Strategy, cluster: Cluster, *, chunk: int = CHUNK
) -> SyncStrategy:
    """The partitioned parameter server with a transfer station in every node that has several replicas."""
    built = partitioned_parameter_server(graph, strategy, cluster, chunk=chunk)
    return replace(
        built,
        parameters={
            name: replace(sync, order=node_order(strategy.mesh, gradient_reduction_axes(strategy.parameters[name])))
            for name, sync in built.parameters.items()
        },
    )


def node_order(mesh: Mesh, axes: Sequence[int]) -> tuple[tuple[str, ...], ...]:
    """Names of the axes inside a node, then of those between nodes; empty if the group lacks one of the two."""
    inside = tuple(mesh.axes[axis].name for axis in axes if mesh.axes[axis].level > 0)
    between = tuple(mesh.axes[axis].name for axis in axes if mesh.axes[axis].level == 0)
    return (inside, between) if inside and between else ()


def hierarchical_all_reduce(graph: LogicalGraph, strategy: Strategy, _: Cluster, *, chunk: int = CHUNK) -> SyncStrategy:
    """All-reduces that sum inside each node first, so that each device sends only its part over the node's link."""
    return _strategy(
        strategy,
        {
            each.name: ParameterSync(groups=(at // chunk,), order=node_order(strategy.mesh, each.axes))
            for at, each in enumerate(variables(graph, strategy))
        },
    )


def partitioned_all_reduce(
    graph: LogicalGraph,
    strategy: Strategy,
    _: Cluster,
    *,
    chunk: int = CHUNK,
    dim_of: Callable[[Variable], int] | None = None,
) -> SyncStrategy:
    """Large variables split into one shard per node along dim 0 (or ``dim_of``), reduced concurrently; others in chunks."""
    servers, syncs, group = _Servers(strategy.mesh), dict[str, ParameterSync](), 0
    merged = 0
    for each in variables(graph, strategy):
        dim = 0 if dim_of is None else dim_of(each)
        shards = servers.shards(each, dim) if each.can_partition(dim) else 1
        if shards == 1:
            syncs[each.name] = ParameterSync(groups=(merged // chunk,))
            merged += 1
            continue
        # Labels of shards do not collide with those of chunks.
        labels = tuple(2**16 + group + at for at in range(shards))
        group += shards
        syncs[each.name] = ParameterSync(groups=labels, partition=Partition(dim, shards))
    return _strategy(strategy, syncs)


def random_axis_partitioned_all_reduce(
    graph: LogicalGraph, strategy: Strategy, cluster: Cluster, *, chunk: int = CHUNK, seed: int = 0
) -> SyncStrategy:
    """The partitioned all-reduce with a random dim for each variable."""

    def dim_of(variable: Variable) -> int:
        dims = [dim for dim in range(len(variable.shape)) if variable.can_partition(dim)]
        return random.Random(f"{seed}/{variable.name}").choice(dims) if dims else 0  # noqa: S311 - no secret

    return partitioned_all_reduce(graph, strategy, cluster, chunk=chunk, dim_of=dim_of)


def sparse_all_gather(graph: LogicalGraph, strategy: Strategy, _: Cluster, *, chunk: int = CHUNK) -> SyncStrategy:
    """Rows of embedding tables by all-gather; the other gradients by all-reduce in chunks."""

    def gathered(_: Variable, group: int, rows: int) -> ParameterSync:
        return ParameterSync(groups=(group,), sparse_rows=rows)

    return _by_density(graph, strategy, chunk, gathered)


def parallax(graph: LogicalGraph, strategy: Strategy, _: Cluster, *, chunk: int = CHUNK) -> SyncStrategy:
    """Rows of embedding tables through balanced parameter servers; the others by all-reduce in chunks (Kim et al. 2018)."""
    servers = _Servers(strategy.mesh)

    def served(each: Variable, group: int, rows: int) -> ParameterSync:
        sync = _served(each, servers, group, partition=each.can_partition(0))
        return replace(sync, sparse_rows=min(rows, -(-each.shape[0] // sync.num_shards)))

    return _by_density(graph, strategy, chunk, served)


def _by_density(
    graph: LogicalGraph, strategy: Strategy, chunk: int, sparse: Callable[[Variable, int, int], ParameterSync]
) -> SyncStrategy:
    bound = graph.bind(**dict.fromkeys(graph.symbols, strategy.micro_batch))
    lookups, syncs, dense = lookup_parameters(graph), dict[str, ParameterSync](), 0
    for at, each in enumerate(variables(graph, strategy)):
        if each.name in lookups:
            rows = min(lookups_per_replica(bound, strategy, each.name), each.shape[0])
            syncs[each.name] = sparse(each, at // chunk, rows)
        else:
            syncs[each.name] = ParameterSync(groups=(dense // chunk,))
            dense += 1
    return _strategy(strategy, syncs)


def data_parallel(graph: LogicalGraph, strategy: Strategy, _: Cluster) -> SyncStrategy:
    """Default buckets of DistributedDataParallel (Li et al. 2020): 1 MiB, then 25 MiB, last variable first."""
    return _fused(graph, strategy, [FIRST_BUCKET_BYTES], BUCKET_BYTES, closes_above=False)


def horovod(graph: LogicalGraph, strategy: Strategy, _: Cluster) -> SyncStrategy:
    """Horovod's tensor fusion: variables in the order of their gradients, up to 64 MiB per message."""
    return _fused(graph, strategy, [], FUSION_BYTES, closes_above=True)


def _fused(
    graph: LogicalGraph, strategy: Strategy, first: Iterable[int], limit: int, *, closes_above: bool
) -> SyncStrategy:
    """Messages of consecutive variables, closed before they exceed a limit (``closes_above``) or once they reach it.

    Args:
        first: limits of the first messages in bytes.
        limit: limit of all other messages in bytes.
    """
    limits, syncs = iter(first), dict[str, ParameterSync]()
    group, total, most = 0, 0, next(limits, limit)
    for each in reversed(variables(graph, strategy)):
        full = total + each.num_bytes > most if closes_above else total >= most
        if total and full:
            group, total, most = group + 1, 0, next(limits, limit)
        syncs[each.name] = ParameterSync(groups=(group,))
        total += each.num_bytes
    return _strategy(strategy, dict(reversed(syncs.items())))


BUILDERS: Mapping[str, Builder] = {
    "all_reduce": all_reduce,
    "ps": parameter_server,
    "ps_balanced": balanced_parameter_server,
    "ps_partitioned": partitioned_parameter_server,
    "ps_hierarchical": hierarchical_parameter_server,
    "all_reduce_partitioned": partitioned_all_reduce,
    "all_reduce_random_axis": random_axis_partitioned_all_reduce,
    "all_reduce_hierarchical": hierarchical_all_reduce,
    "sparse_all_gather": sparse_all_gather,
    "parallax": parallax,
    "ddp": data_parallel,
    "horovod": horovod,
}
"""Builders by name. Those in ``CHUNKED`` also take ``chunk``, the number of adjacent variables in one message."""
CHUNKED = frozenset(BUILDERS) - {"ddp", "horovod"}


def builder_named(name: str, chunk: int | None = None) -> Builder:
    """The builder of this name; raises ``InputError`` if it is unknown or cannot take ``chunk``."""
    if name not in BUILDERS:
        raise InputError("builder", name, f"expected one of {', '.join(BUILDERS)}")
    if chunk is None:
        return BUILDERS[name]
    if name not in CHUNKED or chunk < 1:
        raise InputError("chunk", chunk, f"expected a number from 1, with one of {', '.join(sorted(CHUNKED))}")
    chunked: Callable[..., SyncStrategy] = BUILDERS[name]
    return partial(chunked, chunk=chunk)


def with_sync(
    graph: LogicalGraph, strategy: Strategy, cluster: Cluster, name: str, chunk: int | None = None
) -> Strategy:
    """The strategy with a builder's synchronization.

    Args:
        graph: the graph, with a symbolic batch or bound at the strategy's microbatch size.
        strategy: the strategy, whose layouts stay.
        cluster: the cluster of the strategy.
        name: a key of ``BUILDERS``.
        chunk: number of adjacent variables in one message; None for the builder's default.

    Raises:
        InputError: the name is unknown, or the builder takes no ``chunk``.
    """
    return replace(strategy, sync=builder_named(name, chunk)(graph, strategy, cluster))
