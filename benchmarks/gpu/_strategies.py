"""Plans for a few ranks that share a GPU; they cover each kind of collective, storage and schedule."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from autosbp.api import Cluster, LogicalGraph, PlanOptions, make_plan
from autosbp.cluster.spec import Level
from autosbp.costmodel.memory import rank_memory
from autosbp.costmodel.memory.stage_memory import stage_memory
from autosbp.costmodel.pipeline_program import PipelineProgram
from autosbp.plan.plan import Strategy
from benchmarks.gpu._gpu_sharing import launch
from benchmarks.gpu._models import model, one_device

RANKS, BATCH = 4, 8
WAYS: dict[str, dict[str, Any]] = {
    "data parallel": {"stages": 1, "data_parallel": 4, "tensor_parallel": 1, "storage": "as_used"},
    "tensor parallel": {"stages": 1, "data_parallel": 1, "tensor_parallel": 4, "storage": "as_used"},
    "2 x 2": {"stages": 1, "data_parallel": 2, "tensor_parallel": 2, "storage": "as_used"},
    "ZeRO-2": {"stages": 1, "data_parallel": 4, "tensor_parallel": 1, "storage": "step", "bucket_bytes": 2**20},
    "ZeRO-3": {"stages": 1, "data_parallel": 4, "tensor_parallel": 1, "storage": "use", "bucket_bytes": 2**20},
    "ZeRO-3 recomputed, 2 microbatches": {
        "stages": 1, "storage": "use", "recompute": 1, "micro_batch": BATCH // 2, "bucket_bytes": 2**20,
    },
    "planned": {},
    "GPipe, 2 stages": {"stages": 2, "schedules": ("gpipe",), "micro_batch": 2},
    "1F1B, 4 stages": {"stages": 4, "schedules": ("1f1b",), "micro_batch": 1},
    "interleaved 1F1B, 2 stages": {"stages": 2, "schedules": ("interleaved_1f1b",), "micro_batch": 2},
    "zero bubble, 2 stages": {"stages": 2, "schedules": ("zero_bubble",), "micro_batch": 2},
}  # fmt: skip
MODELS = {"gpt2-demo": WAYS, "moe-small": ("data parallel", "planned"), "resnet50-small": ("data parallel", "planned")}


def cluster_of_cpus() -> Cluster:
    """Two nodes of two slow devices: on fast ones, small models would not be split."""
    one = one_device("cpu", "", curves=True)
    levels = (Level("n", 2, 1e-5, 1e10), Level("g", 2, 1e-5, 1e10))
    return Cluster(f"2 x 2 {one.device.name}", levels, one.device, host=one.host)


def rank_rows(kind: str, timeout_s: float) -> list[dict[str, Any]]:
    """One row per model and strategy whose ranks finished."""
    cluster, cases = cluster_of_cpus(), {}
    for name, ways in MODELS.items():
        graph = model(name)
        cases[name] = graph, {way: _planned(graph, cluster, WAYS[way]) for way in ways}
    told = [
        {
            "model": name,
            "graph": graph.to_dict(),
            "strategies": [{"label": way, "strategy": each.to_dict()} for way, each in found.items()],
        }
        for name, (graph, found) in cases.items()
    ]
    with tempfile.TemporaryDirectory(prefix="autosbp-gpu-") as folder:
        request, result = Path(folder, "request.json"), Path(folder, "result.json")
        request.write_text(json.dumps({"device": kind, "cases": told}))
        arguments = [str(request), str(result)]
        outcome = launch("benchmarks.gpu._ranks", arguments, RANKS, Path(folder, "log"), timeout_s=timeout_s)
        found = json.loads(result.read_text()) if result.exists() else []
    rows = [_row(entry, *_of(cases, entry), kind) for entry in found]
    return [*rows, {"error": outcome.reason, "log": outcome.log_tail[-3000:]}] if outcome.reason else rows


def _planned(graph: LogicalGraph, cluster: Cluster, way: dict[str, Any]) -> Strategy:
    return make_plan(graph, cluster, None, PlanOptions(global_batch=BATCH, baselines=(), **way)).strategy


def _of(cases: dict[str, Any], entry: dict[str, Any]) -> tuple[LogicalGraph, Strategy]:
    graph, strategies = cases[entry["model"]]
    return graph, strategies[entry["label"]]


def _row(entry: dict[str, Any], graph: LogicalGraph, strategy: Strategy, kind: str) -> dict[str, Any]:
    bound = graph.bind(**dict.fromkeys(graph.symbols, strategy.micro_batch))
    if strategy.pipeline is None:
        predicted = [rank_memory(bound, strategy, device=kind).peak] * RANKS
    else:
        stages = PipelineProgram(bound, strategy)
        of_stage = [sum(stage_memory(stages, at, device=kind).values()) for at in range(strategy.num_stages)]
        predicted = [of_stage[rank // strategy.mesh.size] for rank in range(RANKS)]
    peaks = [rank["peak"] for rank in entry["ranks"]]
    worst = max(range(RANKS), key=lambda rank: abs(predicted[rank] / peaks[rank] - 1))
    return {
        "model": entry["model"],
        "strategy": entry["label"],
        "collectives_match": all(rank["match"] for rank in entry["ranks"]),
        "collectives": entry["ranks"][0]["count"],
        "kinds": entry["ranks"][0]["kinds"],
        "loss_difference": entry["loss_difference"],
        "peak_bytes": peaks[worst],
        "predicted_bytes": predicted[worst],
        "memory_error": predicted[worst] / peaks[worst] - 1,
    }
