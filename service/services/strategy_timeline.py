"""Analyses of stored strategies for pages: timeline of the step, and communication."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.network import NetworkModel
from autosbp.costmodel.pipeline_cost import pipeline_spans
from autosbp.costmodel.pipeline_timing import PassSpan
from autosbp.export import export_plan
from autosbp.graph.ir import LogicalGraph
from autosbp.report.traffic import collective_traffic, link_seconds
from autosbp.service.request_state import AppState
from autosbp.service.services.strategies import StrategyContext, load_context


@dataclass(frozen=True, slots=True)
class Traffic:
    """Communication of a step.

    Attributes:
        collectives: by kind, phase and mesh axes, as ``autosbp explain`` counts them.
        links: seconds of communication by the slowest network level that it crosses.
    """

    collectives: list[dict[str, Any]]
    links: dict[str, float]


def passes(state: AppState, strategy_id: str) -> list[PassSpan]:
    """Return every pass of a pipeline's step, none for a strategy without stages; raise 404 if it is missing."""
    one = load_context(state, strategy_id)
    strategy = one.plan.strategy
    if strategy.pipeline is None:
        return []
    compute = ComputeModel(one.plan.cluster.device, one.calibration)
    boxing = BoxingModel(NetworkModel(one.plan.cluster, one.calibration), strategy.mesh, compute.copy_bytes_per_s)
    return pipeline_spans(bind_microbatch(one), strategy, boxing, compute)


def events(state: AppState, strategy_id: str) -> list[dict[str, Any]]:
    """Return every event of a step without stages, in Chrome's trace event format; raise 404 if it is missing."""
    one = load_context(state, strategy_id)
    trace = json.loads(export_plan("perfetto", one.plan, one.graph, one.calibration)["trace.json"])
    return [event for event in trace["traceEvents"] if event["ph"] == "X"]


def traffic(state: AppState, strategy_id: str) -> Traffic:
    """Return the communication of a device in a step, or raise 404."""
    one = load_context(state, strategy_id)
    return Traffic(collective_traffic(one.plan, one.graph), link_seconds(one.plan, one.graph, one.calibration) or {})


def bind_microbatch(one: StrategyContext) -> LogicalGraph:
    """The graph with its batch symbols set to the strategy's microbatch size."""
    return one.graph.bind(**dict.fromkeys(one.graph.symbols, one.plan.strategy.micro_batch))
