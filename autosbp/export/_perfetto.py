"""Perfetto: the predicted step of rank 0 in Chrome's trace event format, for https://ui.perfetto.dev."""

from __future__ import annotations

import json
from typing import Any

from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.calibration import Calibration
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.network import NetworkModel
from autosbp.costmodel.simulate import Simulation, Span
from autosbp.costmodel.timeline import Timeline
from autosbp.errors import InputError
from autosbp.export._base import needed_graph
from autosbp.graph.ir import LogicalGraph
from autosbp.plan import Plan

_THREADS = {"compute": 1, "optimizer": 1, "comm": 2}
_BESIDE = 3
_NAMES = {1: "compute", 2: "network, waited for", _BESIDE: "network, beside compute"}


def export_perfetto(
    plan: Plan, graph: LogicalGraph | None = None, calibration: Calibration | None = None
) -> dict[str, str]:
    """``trace.json``: an event per op, boxing step, collective and optimizer update, at its predicted time.

    Raises:
        InputError: without the graph, or the calibration that the plan was made with.
    """
    graph = needed_graph(plan, graph, "perfetto")
    wanted = plan.document["provenance"].get("calibration_id")
    given = None if calibration is None else calibration.calibration_id
    if wanted != given:
        limit = f"the plan's calibration {wanted} is expected" if wanted else "the plan was made without a calibration"
        raise InputError("calibration", given, limit)
    events: list[dict[str, Any]] = [_meta("process_name", 0, f"rank 0 of {plan.strategy.mesh.size}, predicted")]
    events += [_meta("thread_name", thread, name) for thread, name in _NAMES.items()]
    simulation = _simulated(plan, graph, calibration)
    events += [_complete(span) for span in sorted(simulation.spans, key=lambda span: span.start_s)]
    document = {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"plan_id": plan.plan_id, "model": graph.name, "cluster": plan.cluster.name},
    }
    return {"trace.json": json.dumps(document, separators=(",", ":")) + "\n"}


def _meta(kind: str, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": 0, "tid": thread, "name": kind, "args": {"name": name}}


def _simulated(plan: Plan, graph: LogicalGraph, calibration: Calibration | None) -> Simulation:
    strategy, device = plan.strategy, plan.cluster.device
    compute = ComputeModel(device, calibration)
    boxing = BoxingModel(NetworkModel(plan.cluster, calibration), strategy.mesh, compute.copy_bytes_per_s)
    bound = graph.bind(**dict.fromkeys(graph.symbols, strategy.micro_batch))
    simulation = Simulation(compute.overlap)
    simulation.run(Timeline(bound, strategy, boxing, compute).events())
    simulation.drain()
    return simulation


def _complete(span: Span) -> dict[str, Any]:
    """Times are microseconds."""
    event = span.event
    return {
        "ph": "X",
        "pid": 0,
        "tid": _THREADS[event.category] if event.key is None else _BESIDE,
        "name": event.name,
        "cat": event.category,
        "ts": span.start_s * 1e6,
        "dur": (span.end_s - span.start_s) * 1e6,
        "args": {"phase": event.phase, **event.details},
    }
