"""Diverse strategies, for tests and for validating predictions: optima of the problem under random costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from autosbp.cluster.spec import Cluster
from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.calibration import Calibration
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.network import NetworkModel
from autosbp.graph.ir import LogicalGraph
from autosbp.plan.plan import Strategy
from autosbp.search import SEARCHERS, SearchOptions
from autosbp.search.problem.builder import ProblemBuilder
from autosbp.search.problem.strategy import strategy_of


def sample_strategies(
    graph: LogicalGraph,
    cluster: Cluster,
    count: int,
    *,
    global_batch: int,
    micro_batch: int,
    seed: int = 0,
    optimizer: str = "adamw",
    weights: Sequence[float] = (0.0, 0.3, 1.0),
    calibration: Calibration | None = None,
) -> list[Strategy]:
    """Up to ``count`` different executable strategies, from arbitrary to nearly optimal.

    Each minimises the true costs times a weight plus random unary costs; weight 0 ignores the true costs. Deterministic
    for a ``seed``.
    """
    mesh = cluster.mesh()
    compute = ComputeModel(cluster.device, calibration)
    boxing = BoxingModel(NetworkModel(cluster, calibration), mesh, compute.copy_bytes_per_s)
    bound = graph.bind(**dict.fromkeys(graph.symbols, micro_batch))
    builder = ProblemBuilder(bound, boxing, compute, num_micro=global_batch // micro_batch, optimizer=optimizer)
    built = builder.build(None, dominated=True)
    rng = np.random.default_rng(seed)
    found: dict[str, Strategy] = {}
    for attempt in range(20 * count):
        if len(found) == count:
            break
        weight = weights[attempt % len(weights)]
        scale = float(np.mean([costs.mean() for costs in built.problem.unary_s]))
        unary = tuple(weight * costs + scale * rng.random(len(costs)) for costs in built.problem.unary_s)
        edges = tuple(
            replace(edge, table=np.multiply(edge.table, weight, out=edge.table.copy(), where=np.isfinite(edge.table)))
            for edge in built.problem.edges
        )
        problem = replace(built.problem, unary_s=unary, edges=edges)
        assignment = SEARCHERS["exact"](problem, SearchOptions(seed=seed, time_limit_s=30.0)).assignment
        strategy = strategy_of(
            built, assignment, bound, boxing, global_batch=global_batch, micro_batch=micro_batch, optimizer=optimizer
        )
        found.setdefault(str(strategy.to_dict()), strategy)
    return list(found.values())
