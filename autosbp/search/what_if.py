"""Effect of better hardware on the step time: for the plan's own strategy, and for the best one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from autosbp.cluster.spec import Cluster
from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.calibration import Calibration
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.hardware_scaling import scale_device_memory, scale_device_speed, scale_link_bandwidth
from autosbp.costmodel.network import NetworkModel
from autosbp.costmodel.strategy_cost import evaluate
from autosbp.errors import InputError
from autosbp.graph.ir import LogicalGraph
from autosbp.plan.plan import Costs, Plan, Strategy
from autosbp.search.branch_and_bound.plan_subproblem import checked_sources
from autosbp.search.plan_options import PlanOptions
from autosbp.search.planner import make_plan

FACTOR = 2.0


@dataclass(frozen=True, slots=True)
class HardwareChange:
    """One part of the cluster made ``factor`` times better.

    Args:
        name: ``link NAME`` (bandwidth of a level), ``device`` (FLOP/s and memory bandwidth) or ``memory``.
        same: costs of the plan's strategy on it.
        best: costs of the best strategy on it, at least as good.
        strategy: the best strategy.
    """

    name: str
    factor: float
    same: Costs
    best: Costs
    strategy: Strategy


def what_if(
    graph: LogicalGraph,
    plan: Plan,
    calibration: Calibration | None = None,
    *,
    factor: float = FACTOR,
    report: Callable[[str], None] | None = None,
) -> tuple[HardwareChange, ...]:
    """Search again with the plan's options, with each link, the device or its memory made better.

    Args:
        graph, calibration: those that the plan was made from. Measurements are scaled (``costmodel.hardware_scaling``).
        factor: of the improvement, above 1 and at most 1000.
        report: called with the name of each change before its search.

    Raises:
        InputError: another graph or calibration than the plan's, or a factor out of range.
    """
    if not 1.0 < factor <= 1000.0:
        raise InputError("factor", factor, "expected more than 1 and at most 1000")
    graph = checked_sources(graph, plan, calibration)
    options = replace(PlanOptions.from_dict(plan.document["options"]), baselines=())
    return tuple(
        _changed(graph, plan, options, factor, report, *case) for case in _cases(plan.cluster, calibration, factor)
    )


def _cases(
    cluster: Cluster, calibration: Calibration | None, factor: float
) -> Iterator[tuple[str, Cluster, Calibration | None]]:
    for at, level in enumerate(cluster.levels):
        if level.count > 1:
            yield f"link {level.name}", *scale_link_bandwidth(cluster, calibration, at, factor)
    yield "device", *scale_device_speed(cluster, calibration, factor)
    yield "memory", *scale_device_memory(cluster, calibration, factor)


def _changed(
    graph: LogicalGraph,
    plan: Plan,
    options: PlanOptions,
    factor: float,
    report: Callable[[str], None] | None,
    name: str,
    cluster: Cluster,
    calibration: Calibration | None,
) -> HardwareChange:
    if report is not None:
        report(name)
    if name == "memory" and options.memory_limit_bytes is not None:
        options = replace(options, memory_limit_bytes=round(factor * options.memory_limit_bytes))
    same = _costs(graph, plan.strategy, cluster, calibration)
    found = make_plan(graph, cluster, calibration, options).strategy
    best = _costs(graph, found, cluster, calibration)
    if same.step_time_s <= best.step_time_s:
        return HardwareChange(name, factor, same, same, plan.strategy)
    return HardwareChange(name, factor, same, best, found)


def _costs(graph: LogicalGraph, strategy: Strategy, cluster: Cluster, calibration: Calibration | None) -> Costs:
    compute = ComputeModel(cluster.device, calibration)
    boxing = BoxingModel(NetworkModel(cluster, calibration), strategy.mesh, compute.copy_bytes_per_s)
    return evaluate(graph.bind(**dict.fromkeys(graph.symbols, strategy.micro_batch)), strategy, boxing, compute)
