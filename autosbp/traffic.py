"""The collectives and messages of a plan's step, counted for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autosbp.costmodel.calibration import Calibration
    from autosbp.costmodel.collectives import Collective
    from autosbp.costmodel.stages import StageCall
    from autosbp.graph.ir import LogicalGraph
    from autosbp.plan import Plan, Strategy

STAGES = "stages"
"""In the place of mesh axes, where the ranks of a collective are in several stages."""


def issues(plan: Plan, graph: LogicalGraph) -> list[dict[str, Any]]:
    """A step's collectives by kind, phase and axes: how many, and the bytes that a device sends. Of a pipeline, those of
    the stage that sends most; messages that it receives are not among them."""
    from autosbp.costmodel.collectives import collectives
    from autosbp.costmodel.stages import Stages

    strategy = plan.strategy
    bound = graph.bind(**dict.fromkeys(graph.symbols, strategy.micro_batch))
    if strategy.pipeline is None:
        return _counted(strategy, collectives(bound, strategy))
    stages = Stages(bound, strategy)
    sent = [
        _counted(strategy, [call for call in stages.calls(stage) if not _arrives(call, stage)])
        for stage in range(strategy.pipeline.num_stages)
    ]
    return max(sent, key=lambda entries: sum(entry["bytes_per_device"] for entry in entries))


def link_seconds(plan: Plan, graph: LogicalGraph, calibration: Calibration | None) -> dict[str, float] | None:
    """Seconds of a step's communication by level of the cluster; None without the calibration that the plan has."""
    from autosbp.costmodel.boxing import BoxingModel
    from autosbp.costmodel.compute import ComputeModel
    from autosbp.costmodel.levels import level_seconds
    from autosbp.costmodel.network import NetworkModel

    given = None if calibration is None else calibration.calibration_id
    if given != plan.document["provenance"].get("calibration_id"):
        return None
    strategy = plan.strategy
    compute = ComputeModel(plan.cluster.device, calibration)
    boxing = BoxingModel(NetworkModel(plan.cluster, calibration), strategy.mesh, compute.copy_bytes_per_s)
    return level_seconds(graph.bind(**dict.fromkeys(graph.symbols, strategy.micro_batch)), strategy, boxing, compute)


def _arrives(call: Collective | StageCall, stage: int) -> bool:
    from autosbp.costmodel.stages import StageCall

    return isinstance(call, StageCall) and call.kind == "p2p" and call.stages[0] != stage


def _counted(strategy: Strategy, calls: Sequence[Collective | StageCall]) -> list[dict[str, Any]]:
    from autosbp.costmodel.network import beta_factor
    from autosbp.costmodel.stages import StageCall

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
