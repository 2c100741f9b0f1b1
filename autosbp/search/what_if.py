"""What better hardware would buy: the plan's own strategy on it, and the best one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from autosbp.cluster import Cluster
from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.calibration import Calibration
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.evaluate import evaluate
from autosbp.costmodel.faster import faster_device, faster_link, more_memory
from autosbp.costmodel.network import NetworkModel
from autosbp.errors import InputError
from autosbp.graph.ir import LogicalGraph
from autosbp.plan import Costs, Plan, Strategy
from autosbp.search.plan_options import PlanOptions
from autosbp.search.planner import make_plan
from autosbp.search.space.plan_space import check_sources

FACTOR = 2.0


@dataclass(frozen=True, slots=True)
class Change:
    """One thing ``factor`` times better: ``link NAME`` (bandwidth of a level), ``device`` (arithmetic and memory bandwidth)
    or ``memory``. ``same`` are the costs of the plan's strategy there, ``best`` those of the best one, which is at least as
    good; ``strategy`` is that one."""

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
) -> tuple[Change, ...]:
    """The plan's step were one thing of its cluster better, for each link, the device and its memory; searched again with
    the plan's options.

    Args:
        graph, calibration: those that the plan was made from. What was measured is scaled (``costmodel.faster``).
        factor: how many times better.
        report: told the name of each change before it is searched.

    Raises:
        InputError: another graph or calibration than the plan's, or a factor that is not above 1 or above 1000.
    """
    if not 1.0 < factor <= 1000.0:
        raise InputError("factor", factor, "more than 1 and at most 1000 is expected")
    check_sources(graph, plan, calibration)
    options = replace(PlanOptions.from_dict(plan.document["options"]), baselines=())
    return tuple(
        _changed(graph, plan, options, factor, report, *case) for case in _cases(plan.cluster, calibration, factor)
    )


def _cases(
    cluster: Cluster, calibration: Calibration | None, factor: float
) -> Iterator[tuple[str, Cluster, Calibration | None]]:
    for at, level in enumerate(cluster.levels):
        if level.count > 1:
            yield f"link {level.name}", *faster_link(cluster, calibration, at, factor)
    yield "device", *faster_device(cluster, calibration, factor)
    yield "memory", *more_memory(cluster, calibration, factor)


def _changed(
    graph: LogicalGraph,
    plan: Plan,
    options: PlanOptions,
    factor: float,
    report: Callable[[str], None] | None,
    name: str,
    cluster: Cluster,
    calibration: Calibration | None,
) -> Change:
    if report is not None:
        report(name)
    if name == "memory" and options.memory_limit_bytes is not None:
        options = replace(options, memory_limit_bytes=round(factor * options.memory_limit_bytes))
    same = _costs(graph, plan.strategy, cluster, calibration)
    found = make_plan(graph, cluster, calibration, options).strategy
    best = _costs(graph, found, cluster, calibration)
    if same.step_time_s <= best.step_time_s:
        return Change(name, factor, same, same, plan.strategy)
    return Change(name, factor, same, best, found)


def _costs(graph: LogicalGraph, strategy: Strategy, cluster: Cluster, calibration: Calibration | None) -> Costs:
    compute = ComputeModel(cluster.device, calibration)
    boxing = BoxingModel(NetworkModel(cluster, calibration), strategy.mesh, compute.copy_bytes_per_s)
    return evaluate(graph.bind(**dict.fromkeys(graph.symbols, strategy.micro_batch)), strategy, boxing, compute)
