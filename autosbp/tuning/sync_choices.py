"""Synchronization strategies in the tuning space: one builder for all variables, or a random mixture of three builders.

All are exact: no lossy compression, no staleness. Builders satisfy the constraints of AutoDist's sampler (section 2.4):
only large variables are partitioned, servers are balanced, and messages have about equal numbers of variables.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from autosbp.cluster.spec import Cluster
from autosbp.graph.ir import LogicalGraph
from autosbp.plan.plan import Strategy
from autosbp.plan.synchronizers import SyncStrategy
from autosbp.program.sync_checks import check_sync, lookup_parameters
from autosbp.search.sync_builders import BUILDERS, CHUNKED, builder_named, variables

DEFAULT_SYNC = ""
"""Name of the default: all gradients are reduced in buckets of the strategy's ``bucket_bytes``."""
MIXED = "mixed "
NUM_MIXED = 12
CHUNKS = (1, 4, 16, 64)
_LABELS = 2**18  # message labels of each builder in a mixture


def sync_names() -> tuple[str, ...]:
    """Names of all synchronization strategies in the space."""
    return DEFAULT_SYNC, *BUILDERS, *(f"{MIXED}{seed}" for seed in range(NUM_MIXED))


def synchronized(graph: LogicalGraph, strategy: Strategy, cluster: Cluster, name: str) -> Strategy:
    """The strategy with the named synchronization; unchanged if it has no gradients to synchronize.

    Args:
        graph: the graph, bound at the strategy's microbatch size.
        strategy: the strategy to change.
        cluster: the cluster, whose nodes builders balance.
        name: one of ``sync_names``.

    Raises:
        InputError: the synchronization is not valid for the strategy.
    """
    if name == DEFAULT_SYNC:
        return strategy
    if name.startswith(MIXED):
        sync = _mixed(graph, strategy, cluster, Random(name))
    else:
        sync = BUILDERS[name](graph, strategy, cluster)
    if not sync.parameters:
        return strategy
    found = replace(strategy, sync=sync)
    check_sync(graph, found)
    return found


def _mixed(graph: LogicalGraph, strategy: Strategy, cluster: Cluster, rng: Random) -> SyncStrategy:
    """Random builders and chunk sizes for three kinds of variables: small ones, large ones and embedding tables."""
    names = [rng.choice(sorted(CHUNKED)) for _ in range(3)]
    built = [builder_named(name, rng.choice(CHUNKS))(graph, strategy, cluster) for name in names]
    found = variables(graph, strategy)
    sizes = sorted(each.num_bytes for each in found)
    threshold = sizes[rng.randrange(len(sizes))] if sizes else 0
    lookups = lookup_parameters(graph)
    parameters = {}
    for each in found:
        kind = 2 if each.name in lookups else int(each.num_bytes >= threshold)
        sync = built[kind].parameters[each.name]
        parameters[each.name] = replace(sync, groups=tuple(label + kind * _LABELS for label in sync.groups))
    return replace(built[0], parameters=parameters)
