"""The plan document: result, proved bound and provenance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autosbp import __version__
from autosbp.cluster.memory_reserve import memory_reserve
from autosbp.cluster.spec import Cluster
from autosbp.costmodel.calibration import Calibration
from autosbp.costmodel.model_work import model_work
from autosbp.graph.ir import LogicalGraph
from autosbp.graph.precision import captured_hash
from autosbp.plan.plan import SCHEMA, Baseline, Costs, Strategy, plan_id_of
from autosbp.plan.throughput import throughput
from autosbp.program.parallelism import parallelism_of
from autosbp.program.strategy_name import strategy_name
from autosbp.search._warnings import (
    batch_warnings,
    calibration_warnings,
    degree_warnings,
    precision_warnings,
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
    warm_start_rejection: str = "",
    *,
    bound: LogicalGraph,
    ended_early: bool = False,
) -> Mapping[str, Any]:
    """All members of a plan document.

    Args:
        memory_limit_bytes: per device.
        winner: the plan's strategy with its costs.
        bound_s: lower bound on the step time; None or -inf if nothing is proved.
        evaluations: number of costed values.
        start_aside: why the warm-start strategy was not used; empty if it was.
        bound: the graph at the strategy's microbatch size.
        ended_early: whether the search stopped before it had covered its space.
    """
    strategy, costs = winner
    work = model_work(bound, strategy.micro_batch)
    ideal_s = work.ideal_s(strategy.global_batch, cluster.in_precision(options.precision))
    proved_s = None if bound_s is None or bound_s == float("-inf") else min(bound_s, costs.step_time_s)
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "model": graph.name,
        "strategy_summary": strategy_name(strategy, parallelism_of(graph, strategy, bound), options.precision),
        **({"precision": options.precision} if options.precision else {}),
        **costs.to_dict(),
        **throughput(costs.step_time_s, strategy.global_batch, work.sequence_length, ideal_s, cluster.price_per_hour),
        "memory_limit_bytes": memory_limit_bytes,
        **_memory_reserve(cluster, options),
        "lower_bound_s": proved_s,
        "gap": None if proved_s is None else _gap(costs.step_time_s, proved_s),
        **({"ended_early": ended_early} if ended_early or proved_s is None else {}),
        "searcher": options.searcher,
        "evaluations": evaluations,
        "warnings": [
            *replication_warnings(graph),
            *runtime_warnings(strategy),
            *precision_warnings(graph, cluster),
            *storage_warnings(graph, strategy, options.storage),
            *degree_warnings(graph, strategy, options.tensor_parallel),
            *batch_warnings(graph, strategy),
            *calibration_warnings(graph, strategy, cluster, calibration),
            *([f"The warm start was not used: {warm_start_rejection}."] if warm_start_rejection else []),
        ],
        "baselines": {baseline.name: baseline.to_dict() for baseline in baselines},
        "strategy": strategy.to_dict(),
        "baseline_strategies": {
            baseline.name: baseline.strategy.to_dict() for baseline in baselines if baseline.strategy is not None
        },
        "cluster": cluster.to_dict(),
        "options": options.to_dict(),
        "provenance": {
            "graph_hash": captured_hash(graph),
            **({"graph_check": graph.provenance["checked"]} if "checked" in graph.provenance else {}),
            "cluster_hash": cluster.cluster_hash,
            "calibration_id": calibration.calibration_id if calibration else None,
            "searcher": options.searcher,
            "seed": options.seed,
            "version": __version__,
        },
    }
    document["plan_id"] = plan_id_of(document)
    return document


def _memory_reserve(cluster: Cluster, options: PlanOptions) -> dict[str, Mapping[str, int]]:
    """What the memory limit leaves of a device, by purpose; nothing if the limit is given, or the devices differ."""
    if options.memory_limit_bytes is not None or cluster.groups:
        return {}
    reserve = memory_reserve(cluster.device, cluster.num_devices)
    return {"memory_reserve": reserve} if reserve else {}


def _gap(cost: float, bound: float) -> float:
    gap = (cost - bound) / cost if cost > 0 else 0.0
    return 0.0 if gap < 1e-9 else gap  # cost and bound are summed in different orders
