"""Synchronization strategies that tuning samples: those of builders, and mixtures of builders chosen for each variable.

All are exact. The constraints of AutoDist's sampler (section 2.4) are those of the builders: only large variables are
partitioned, servers have balanced loads, and messages have about equal numbers of variables.
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
"""All gradients are reduced in buckets of the strategy's size."""
MIXED = "mixed "
NUM_MIXED = 12
CHUNKS = (1, 4, 16, 64)
_LABELS = 2**18  # message labels of each builder in a mixture


def sync_names() -> tuple[str, ...]:
    """All synchronization strategies by name."""
    return DEFAULT_SYNC, *BUILDERS, *(f"{MIXED}{seed}" for seed in range(NUM_MIXED))


def synchronized(graph: LogicalGraph, strategy: Strategy, cluster: Cluster, name: str) -> Strategy:
    """The strategy with a synchronization strategy; itself if no gradient is left to synchronize.

    Args:
        graph: bound at the strategy's microbatch size.
        name: one of ``sync_names``.

    Raises:
        InputError: it does not fit the strategy.
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
    """Small, large and looked-up variables by a builder each, with its own number of variables in a message."""
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
