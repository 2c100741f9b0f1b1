"""Perfetto: the predicted step of rank 0 in Chrome's trace event format, for https://ui.perfetto.dev."""

from __future__ import annotations

import json
from typing import Any

from autosbp.costmodel.calibration import Calibration
from autosbp.errors import InputError
from autosbp.export._base import needed_graph
from autosbp.export._timeline import Event, Timeline
from autosbp.graph.ir import LogicalGraph
from autosbp.plan import Plan

_THREADS = {"compute": 1, "optimizer": 1, "comm": 2}
_NAMES = {1: "compute", 2: "network"}


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
    clock_s = 0.0
    for event in Timeline(plan, graph, calibration).events():
        events.append(_complete(event, clock_s))
        clock_s += event.duration_s
    document = {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"plan_id": plan.plan_id, "model": graph.name, "cluster": plan.cluster.name},
    }
    return {"trace.json": json.dumps(document, separators=(",", ":")) + "\n"}


def _meta(kind: str, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": 0, "tid": thread, "name": kind, "args": {"name": name}}


def _complete(event: Event, start_s: float) -> dict[str, Any]:
    """Times are microseconds."""
    return {
        "ph": "X",
        "pid": 0,
        "tid": _THREADS[event.category],
        "name": event.name,
        "cat": event.category,
        "ts": start_s * 1e6,
        "dur": event.duration_s * 1e6,
        "args": {"phase": event.phase, **event.details},
    }
