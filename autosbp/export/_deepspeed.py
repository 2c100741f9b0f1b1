"""DeepSpeed: a JSON configuration without ZeRO; tensor parallel ranks through its automatic tensor parallelism."""

from __future__ import annotations

import json
from typing import Any

from autosbp.costmodel.calibration import Calibration
from autosbp.export._base import needed_graph
from autosbp.export._grid import grid_of
from autosbp.export._recompute import recomputed_layers
from autosbp.graph.ir import LogicalGraph
from autosbp.plan import Plan


def export_deepspeed(
    plan: Plan,
    graph: LogicalGraph | None = None,
    calibration: Calibration | None = None,  # noqa: ARG001
) -> dict[str, str]:
    """``deepspeed.json``; the optimizer is the caller's, because a plan has no learning rate."""
    grid = grid_of(plan, needed_graph(plan, graph, "deepspeed"), "deepspeed")
    config: dict[str, Any] = {
        "train_batch_size": grid.global_batch,
        "train_micro_batch_size_per_gpu": grid.replica_batch,
        "gradient_accumulation_steps": grid.num_micro,
        "zero_optimization": {"stage": 0},
        "bf16": {"enabled": grid.dtype == "bfloat16"},
        "fp16": {"enabled": grid.dtype == "float16"},
    }
    if grid.tensor > 1:
        config["tensor_parallel"] = {"autotp_size": grid.tensor}
    again = recomputed_layers(plan, needed_graph(plan, graph, "deepspeed"), "deepspeed")
    if again.layers:
        # The model's code calls deepspeed.checkpointing for that many runs of layers.
        config["activation_checkpointing"] = {"number_checkpoints": -(-again.layers // again.interval)}
    return {"deepspeed.json": json.dumps(config, indent=2) + "\n"}
