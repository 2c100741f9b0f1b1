"""Perfetto: the predicted step of rank 0, or of every stage, as Chrome trace events for https://ui.perfetto.dev."""

from __future__ import annotations

import json
from typing import Any

from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.calibration import Calibration
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.network import NetworkModel
from autosbp.costmodel.pipeline_cost import pipeline_spans
from autosbp.costmodel.pipeline_timing import PassSpan as PassSpan
from autosbp.costmodel.step_events import Timeline
from autosbp.costmodel.step_simulator import EventSpan, Simulation
from autosbp.export._base import check_calibration, required_graph
from autosbp.graph.ir import LogicalGraph
from autosbp.plan.plan import Plan

_THREADS = {"compute": 1, "optimizer": 1, "comm": 2}
_OVERLAPPED_THREAD = 3
_NAMES = {1: "compute", 2: "network, exposed", _OVERLAPPED_THREAD: "network, overlapped with compute"}


def export_perfetto(
    plan: Plan, graph: LogicalGraph | None = None, calibration: Calibration | None = None
) -> dict[str, str]:
    """Write ``trace.json``: an event per op, boxing step, collective and optimizer update, at its predicted time.

    For a pipeline, it has an event per forward or backward pass of a microbatch through a chunk, and none for the work
    after the last pass.

    Raises:
        InputError: the graph or the plan's calibration is missing.
    """
    graph = required_graph(plan, graph, "perfetto")
    check_calibration(plan, calibration)
    events = (_events if plan.strategy.pipeline is None else _passes)(plan, graph, calibration)
    document = {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"plan_id": plan.plan_id, "model": graph.name, "cluster": plan.cluster.name},
    }
    return {"trace.json": json.dumps(document, separators=(",", ":")) + "\n"}


def _events(plan: Plan, graph: LogicalGraph, calibration: Calibration | None) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = [
        _metadata_event("process_name", 0, f"rank 0 of {plan.strategy.mesh.size}, predicted")
    ]
    events += [_metadata_event("thread_name", thread, name) for thread, name in _NAMES.items()]
    simulation = _simulated(plan, graph, calibration)
    return events + [_event_span(span) for span in sorted(simulation.spans, key=lambda span: span.start_s)]


def _passes(plan: Plan, graph: LogicalGraph, calibration: Calibration | None) -> list[dict[str, Any]]:
    """Events of a pipeline, with one trace thread per stage."""
    strategy = plan.strategy
    events: list[dict[str, Any]] = [_metadata_event("process_name", 0, f"{strategy.num_stages} stages, predicted")]
    events += [_metadata_event("thread_name", stage, f"stage {stage}") for stage in range(strategy.num_stages)]
    spans = pipeline_spans(_bound(plan, graph), strategy, *_models(plan, calibration))
    return events + [_pass_event(span) for span in sorted(spans, key=lambda span: (span.start_s, span.stage))]


def _metadata_event(kind: str, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": 0, "tid": thread, "name": kind, "args": {"name": name}}


def _simulated(plan: Plan, graph: LogicalGraph, calibration: Calibration | None) -> Simulation:
    boxing, compute = _models(plan, calibration)
    simulation = Simulation(compute.overlap)
    simulation.run(Timeline(_bound(plan, graph), plan.strategy, boxing, compute).events())
    simulation.drain()
    return simulation


def _models(plan: Plan, calibration: Calibration | None) -> tuple[BoxingModel, ComputeModel]:
    compute = ComputeModel(plan.cluster.device, calibration)
    network = NetworkModel(plan.cluster, calibration)
    return BoxingModel(network, plan.strategy.mesh, compute.copy_bytes_per_s), compute


def _bound(plan: Plan, graph: LogicalGraph) -> LogicalGraph:
    return graph.bind(**dict.fromkeys(graph.symbols, plan.strategy.micro_batch))


def _pass_event(span: PassSpan) -> dict[str, Any]:
    """Trace event of a pipeline pass; times in microseconds."""
    return {
        "ph": "X",
        "pid": 0,
        "tid": span.stage,
        "name": f"{span.what.kind} {span.what.micro}",
        "cat": span.what.kind,
        "ts": span.start_s * 1e6,
        "dur": (span.end_s - span.start_s) * 1e6,
        "args": {"chunk": span.what.chunk, "microbatch": span.what.micro},
    }


def _event_span(span: EventSpan) -> dict[str, Any]:
    """Trace event of a simulated step event; times in microseconds."""
    event = span.event
    return {
        "ph": "X",
        "pid": 0,
        "tid": _THREADS[event.category] if event.key is None else _OVERLAPPED_THREAD,
        "name": event.name,
        "cat": event.category,
        "ts": span.start_s * 1e6,
        "dur": (span.end_s - span.start_s) * 1e6,
        "args": {"phase": event.phase, **event.details},
    }
