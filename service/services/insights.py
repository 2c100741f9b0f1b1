"""What is worked out of a stored strategy and its graph to be looked at: when everything runs, and what is sent."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.network import NetworkModel
from autosbp.costmodel.pipeline import Span
from autosbp.costmodel.pipelined import pipeline_spans
from autosbp.export import export_plan
from autosbp.graph.ir import LogicalGraph
from autosbp.traffic import issues, link_seconds
from service.services.strategies import Subject, subject
from service.state import State


@dataclass(frozen=True, slots=True)
class Traffic:
    """Collectives of a step by kind, phase and axes, as ``autosbp explain`` counts them, and the seconds of communication
    by the slowest level that it crosses."""

    collectives: list[dict[str, Any]]
    links: dict[str, float]


def passes(state: State, strategy_id: str) -> list[Span]:
    """Every pass of a pipeline's step, or 404; none for a strategy without stages."""
    one = subject(state, strategy_id)
    strategy = one.plan.strategy
    if strategy.pipeline is None:
        return []
    compute = ComputeModel(one.plan.cluster.device, one.calibration)
    boxing = BoxingModel(NetworkModel(one.plan.cluster, one.calibration), strategy.mesh, compute.copy_bytes_per_s)
    return pipeline_spans(bound(one), strategy, boxing, compute)


def events(state: State, strategy_id: str) -> list[dict[str, Any]]:
    """Every event of the step of a strategy without stages, in Chrome's trace event format, or 404."""
    one = subject(state, strategy_id)
    trace = json.loads(export_plan("perfetto", one.plan, one.graph, one.calibration)["trace.json"])
    return [event for event in trace["traceEvents"] if event["ph"] == "X"]


def traffic(state: State, strategy_id: str) -> Traffic:
    """What a device sends in a step, or 404."""
    one = subject(state, strategy_id)
    return Traffic(issues(one.plan, one.graph), link_seconds(one.plan, one.graph, one.calibration) or {})


def bound(one: Subject) -> LogicalGraph:
    """The graph at the strategy's microbatch."""
    return one.graph.bind(**dict.fromkeys(one.graph.symbols, one.plan.strategy.micro_batch))
