"""DeepSpeed: a JSON configuration without ZeRO; tensor parallel ranks through its automatic tensor parallelism, stages
through a module that makes its ``PipelineModule``."""

from __future__ import annotations

import json
from typing import Any

from autosbp.costmodel.calibration import Calibration
from autosbp.errors import UnsupportedError
from autosbp.export._base import headline, needed_graph
from autosbp.export._grid import grid_of
from autosbp.export._recompute import Recomputed, recomputed_layers
from autosbp.export._stages import Staged, refuse_schedule, staged_layers
from autosbp.graph.ir import LogicalGraph
from autosbp.plan import Plan
from autosbp.schedules import ONE_F_ONE_B

_MODULE = '''"""Stages with equal numbers of the layers that repeat; what is before is on the first, the rest on the last."""

from collections.abc import Sequence
from typing import Any

from deepspeed.pipe import PipelineModule

NUM_STAGES = {stages}
LAYERS_OF_EACH_STAGE = {layers}
RECOMPUTED_TOGETHER = {interval}  # layers; 0 recomputes none


def pipeline_module(layers: Sequence[Any], layer_class: str, **options: Any) -> PipelineModule:
    """``layers`` of the whole model in order; ``layer_class`` names the class of those that repeat."""
    return PipelineModule(
        layers=layers,
        num_stages=NUM_STAGES,
        partition_method=f"type:{{layer_class}}",
        activation_checkpoint_interval=RECOMPUTED_TOGETHER,
        checkpointable_layers=[layer_class],
        **options,
    )
'''


def export_deepspeed(
    plan: Plan,
    graph: LogicalGraph | None = None,
    calibration: Calibration | None = None,  # noqa: ARG001
) -> dict[str, str]:
    """``deepspeed.json``, and of stages ``deepspeed_pipeline.py``; the optimizer is the caller's, because a plan has no
    learning rate."""
    graph = needed_graph(plan, graph, "deepspeed")
    grid, staged = grid_of(plan, graph, "deepspeed"), staged_layers(plan, graph, "deepspeed")
    refuse_schedule(staged, (ONE_F_ONE_B,), "deepspeed")
    config: dict[str, Any] = {
        "train_batch_size": grid.global_batch,
        "train_micro_batch_size_per_gpu": grid.replica_batch,
        "gradient_accumulation_steps": grid.num_micro,
        "zero_optimization": {"stage": 0},
        "bf16": {"enabled": grid.dtype == "bfloat16"},
        "fp16": {"enabled": grid.dtype == "float16"},
    }
    again = recomputed_layers(plan, graph, "deepspeed")
    if staged.num_stages > 1:
        module = _module(plan, staged, again, grid.tensor)
        return {"deepspeed.json": json.dumps(config, indent=2) + "\n", "deepspeed_pipeline.py": module}
    if grid.tensor > 1:
        config["tensor_parallel"] = {"autotp_size": grid.tensor}
    if again.layers:
        # The model's code calls deepspeed.checkpointing for that many runs of layers.
        config["activation_checkpointing"] = {"number_checkpoints": -(-again.layers // again.interval)}
    return {"deepspeed.json": json.dumps(config, indent=2) + "\n"}


def _module(plan: Plan, staged: Staged, again: Recomputed, tensor: int) -> str:
    """Python that deals layers out by their class: evenly, which is all that it does."""
    if not staged.is_even:
        shown = ", ".join(map(str, staged.layers))
        raise UnsupportedError(f"deepspeed deals layers of a class out evenly; the plan's stages have {shown}")
    if tensor > 1:
        raise UnsupportedError(
            f"deepspeed's automatic tensor parallelism takes no stages; the plan has {tensor} tensor parallel ranks in each"
        )
    if again.layers not in (0, again.count):
        raise UnsupportedError(
            f"deepspeed recomputes all layers of a stage; the plan has {again.layers} of {again.count}"
        )
    body = _MODULE.format(stages=staged.num_stages, layers=staged.layers[0], interval=again.interval)
    return "\n".join(f"# {line}" for line in headline(plan)) + "\n" + body
