"""The plan as a document: what was found, what is proved, and where it came from (DESIGN section 10)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autosbp import __version__
from autosbp.cluster import Cluster
from autosbp.costmodel.calibration import Calibration
from autosbp.graph.ir import LogicalGraph
from autosbp.plan import SCHEMA, Baseline, Costs, Strategy, plan_id_of
from autosbp.search._warnings import (
    batch_warnings,
    calibration_warnings,
    degree_warnings,
    replication_warnings,
    runtime_warnings,
    storage_warnings,
)
from autosbp.search.plan_options import PlanOptions


def plan_document(
    graph: LogicalGraph,
    cluster: Cluster,
    calibration: Calibration | None,
    options: PlanOptions,
    memory_limit_bytes: int,
    winner: tuple[Strategy, Costs],
    baselines: Sequence[Baseline],
    bound_s: float | None,
    evaluations: int,
    start_aside: str = "",
    *,
    ended_early: bool = False,
) -> Mapping[str, Any]:
    """All members of a plan. ``bound_s`` is no more than the step of any strategy takes; None where nothing is proved.
    ``start_aside`` is why the plan that search was to begin with is left aside, ``ended_early`` whether search was to look at
    more."""
    strategy, costs = winner
    proved_s = None if bound_s is None or bound_s == float("-inf") else min(bound_s, costs.step_time_s)
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "model": graph.name,
        **costs.to_dict(),
        "memory_limit_bytes": memory_limit_bytes,
        "lower_bound_s": proved_s,
        "gap": None if proved_s is None else _gap(costs.step_time_s, proved_s),
        **({"ended_early": ended_early} if ended_early or proved_s is None else {}),
        "searcher": options.searcher,
        "evaluations": evaluations,
        "warnings": [
            *replication_warnings(graph),
            *runtime_warnings(strategy),
            *storage_warnings(graph, strategy, options.storage),
            *degree_warnings(graph, strategy, options.tensor_parallel),
            *batch_warnings(graph, strategy),
            *calibration_warnings(graph, strategy, cluster, calibration),
            *([f"The start was left aside: {start_aside}."] if start_aside else []),
        ],
        "baselines": {baseline.name: baseline.to_dict() for baseline in baselines},
        "strategy": strategy.to_dict(),
        "baseline_strategies": {
            baseline.name: baseline.strategy.to_dict() for baseline in baselines if baseline.strategy is not None
        },
        "cluster": cluster.to_dict(),
        "options": options.to_dict(),
        "provenance": {
            "graph_hash": graph.graph_hash,
            "cluster_hash": cluster.cluster_hash,
            "calibration_id": calibration.calibration_id if calibration else None,
            "searcher": options.searcher,
            "seed": options.seed,
            "version": __version__,
        },
    }
    document["plan_id"] = plan_id_of(document)
    return document


def _gap(cost: float, bound: float) -> float:
    gap = (cost - bound) / cost if cost > 0 else 0.0
    return 0.0 if gap < 1e-9 else gap  # the two are summed in different orders
