"""Predict op times at untimed shapes from the times at surrounding shapes."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from typing import Any

import torch

from autosbp.api import Calibration, Cluster, LogicalGraph, PlanOptions, op_keys
from autosbp.calibration._launch_overhead import process_launch_overhead
from autosbp.costmodel.calibration import OpTime
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.op_benchmark import call_seconds, prepare_op

BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24)
SPREAD_BYTES = {"cuda": 256 * 2**20, "cpu": 32 * 2**20}
BOX_S, REPEATS, LEAST, CALLS = 0.05, 30, 5, 20


def op_time(key: str, kind: str) -> OpTime:
    """Median seconds of forward and of backward."""
    forward, backward = prepare_op(key, kind, SPREAD_BYTES[kind])
    return OpTime(_median_s(forward, kind), _median_s(backward, kind))


def _median_s(call: Callable[[], object], kind: str) -> float:
    for _ in range(3):
        call()
    once = max(call_seconds(call, 1, kind), 1e-7)
    calls = max(1, min(CALLS, round(BOX_S / REPEATS / once)))
    repeats = max(LEAST, min(REPEATS, round(BOX_S / once / calls)))
    return statistics.median(call_seconds(call, calls, kind) / calls for _ in range(repeats))


def calibrated(graph: LogicalGraph, cluster: Cluster, options: PlanOptions, kind: str) -> Calibration:
    """Calibration with the timed ops of a plan."""
    known = {key: op_time(key, kind) for key in op_keys(graph, cluster, options)}
    backend = "nccl" if kind == "cuda" else "gloo"
    asked = process_launch_overhead(torch.device(kind)) if kind == "cuda" else None
    return Calibration(cluster, backend, "relative", (), known, launches=asked)


def op_errors(graph: LogicalGraph, cluster: Cluster, kind: str) -> dict[str, Any]:
    """Errors for ops at every second batch size, predicted from their times at the other sizes."""
    keys = {batch: op_keys(graph, cluster, PlanOptions(global_batch=batch)) for batch in BATCHES}
    known = {key: op_time(key, kind) for batch in BATCHES[::2] for key in keys[batch]}
    model = ComputeModel(cluster.device, Calibration(cluster, "gloo", "relative", (), known))
    rows = []
    for batch in BATCHES[1::2]:
        for key in keys[batch]:
            predicted = model.key_times_s(key)
            if key not in known and predicted is not None:
                measured = op_time(key, kind)
                seconds = measured.forward_s + measured.backward_s
                rows.append({
                    "op": json.loads(key)["op"], "batch": batch, "measured_s": seconds, "error": sum(predicted) / seconds - 1,
                    "forward_error": predicted[0] / measured.forward_s - 1,
                })  # fmt: skip
    errors = sorted(abs(row["error"]) for row in rows)
    total = sum(row["measured_s"] for row in rows)
    return {
        "shapes_timed": len(known),
        "shapes_predicted": len(rows),
        "median_op_error": statistics.median(errors),
        "p90_op_error": statistics.quantiles(errors, n=10, method="inclusive")[-1],
        "error_of_the_sum": abs(sum((1 + row["error"]) * row["measured_s"] for row in rows) / total - 1),
        "rows": rows,
    }
