"""Collectives and P2P messages of a plan's step, summarised."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autosbp.costmodel.calibration import Calibration
    from autosbp.costmodel.pipeline_program import StageCall
    from autosbp.costmodel.step_collectives import Collective
    from autosbp.graph.ir import LogicalGraph
    from autosbp.plan.plan import Plan, Strategy

STAGES = "stages"
"""Replaces the mesh axes of a collective whose ranks are in several pipeline stages."""


def collective_traffic(plan: Plan, graph: LogicalGraph) -> list[dict[str, Any]]:
    """Collectives of a step by kind, phase and axes: number of calls, and bytes that a device sends.

    For a pipeline, those of the stage that sends most; messages that it receives do not count.
    """
    from autosbp.costmodel.pipeline_program import PipelineProgram
    from autosbp.costmodel.step_collectives import collectives

    strategy = plan.strategy
    bound = graph.bind(**dict.fromkeys(graph.symbols, strategy.micro_batch))
    if strategy.pipeline is None:
        return _totals(strategy, collectives(bound, strategy))
    stages = PipelineProgram(bound, strategy)
    sent = [
        _totals(strategy, [call for call in stages.calls(stage) if not _is_received(call, stage)])
        for stage in range(strategy.pipeline.num_stages)
    ]
    return max(sent, key=lambda entries: sum(entry["bytes_per_device"] for entry in entries))


def link_seconds(plan: Plan, graph: LogicalGraph, calibration: Calibration | None) -> dict[str, float] | None:
    """Seconds of a step's communication by level of the cluster; None without the plan's own calibration."""
    from autosbp.costmodel.boxing import BoxingModel
    from autosbp.costmodel.compute import ComputeModel
    from autosbp.costmodel.network import NetworkModel
    from autosbp.costmodel.traffic_by_level import level_seconds

    given = None if calibration is None else calibration.calibration_id
    if given != plan.document["provenance"].get("calibration_id"):
        return None
    strategy = plan.strategy
    compute = ComputeModel(plan.cluster.device, calibration)
    boxing = BoxingModel(NetworkModel(plan.cluster, calibration), strategy.mesh, compute.copy_bytes_per_s)
    return level_seconds(graph.bind(**dict.fromkeys(graph.symbols, strategy.micro_batch)), strategy, boxing, compute)


def _is_received(call: Collective | StageCall, stage: int) -> bool:
    from autosbp.costmodel.pipeline_program import StageCall

    return isinstance(call, StageCall) and call.kind == "p2p" and call.stages[0] != stage


def _totals(strategy: Strategy, calls: Sequence[Collective | StageCall]) -> list[dict[str, Any]]:
    from autosbp.costmodel.network import beta_factor
    from autosbp.costmodel.pipeline_program import StageCall

    totals: dict[tuple[str, str, tuple[str, ...]], list[float]] = {}
    names: tuple[str, ...]
    for call in calls:
        if isinstance(call, StageCall):
            ranks, names = len(call.stages), (STAGES,)
        else:
            ranks = strategy.mesh.group_size(call.axes)
            names = tuple(strategy.mesh.axes[axis].name for axis in call.axes)
        entry = totals.setdefault((call.kind, call.phase, names), [0, 0.0])
        entry[0] += 1
        entry[1] += beta_factor(call.kind, ranks) * call.num_bytes
    return [
        {"kind": kind, "phase": phase, "axes": list(axes), "num_calls": int(count), "bytes_per_device": round(size)}
        for (kind, phase, axes), (count, size) in sorted(totals.items(), key=lambda item: (-item[1][1], item[0]))
    ]
