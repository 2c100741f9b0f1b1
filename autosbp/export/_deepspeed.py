"""DeepSpeed: a JSON configuration without ZeRO.

Tensor parallelism uses its AutoTP; pipeline stages use a Python module that builds its ``PipelineModule``.
"""

from __future__ import annotations

import json
from typing import Any

from autosbp.costmodel.calibration import Calibration
from autosbp.errors import UnsupportedError
from autosbp.export._base import provenance_lines, required_graph
from autosbp.export._checkpointed_layers import CheckpointedLayers, checkpointed_layers
from autosbp.export._dp_tp_grid import parallel_grid
from autosbp.export._layer_stages import LayerStages, check_schedule, layer_stages
from autosbp.graph.ir import LogicalGraph
from autosbp.plan.plan import Plan
from autosbp.plan.schedules import ONE_F_ONE_B

_MODULE = '''"""Pipeline stages with equal numbers of repeated layers; other layers are on the first or last stage."""

from collections.abc import Sequence
from typing import Any

from deepspeed.pipe import PipelineModule

NUM_STAGES = {stages}
LAYERS_OF_EACH_STAGE = {layers}
RECOMPUTED_TOGETHER = {interval}  # layers; 0 recomputes none


def pipeline_module(layers: Sequence[Any], layer_class: str, **options: Any) -> PipelineModule:
    """``layers`` of the whole model in order; ``layer_class`` is the class name of the repeated layers."""
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
    """Write ``deepspeed.json``, and ``deepspeed_pipeline.py`` for a plan with stages.

    The caller chooses the optimizer, because a plan has no learning rate.
    """
    graph = required_graph(plan, graph, "deepspeed")
    grid, staged = parallel_grid(plan, graph, "deepspeed"), layer_stages(plan, graph, "deepspeed")
    check_schedule(staged, (ONE_F_ONE_B,), "deepspeed")
    grid.refuse_without_master_weights("deepspeed")
    config: dict[str, Any] = {
        "train_batch_size": grid.global_batch,
        "train_micro_batch_size_per_gpu": grid.replica_batch,
        "gradient_accumulation_steps": grid.num_micro,
        "zero_optimization": {"stage": 0},
        "bf16": {"enabled": grid.dtype == "bfloat16"},
        "fp16": {"enabled": grid.dtype == "float16"},
    }
    if grid.full_precision_gradients:
        config |= {"data_types": {"grad_accum_dtype": "fp32"}, "communication_data_type": "fp32"}
    again = checkpointed_layers(plan, graph, "deepspeed")
    if staged.num_stages > 1:
        module = _module(plan, staged, again, grid.tensor)
        return {"deepspeed.json": json.dumps(config, indent=2) + "\n", "deepspeed_pipeline.py": module}
    if grid.tensor > 1:
        config["tensor_parallel"] = {"autotp_size": grid.tensor}
    if again.layers:
        # The model's code calls deepspeed.checkpointing for that many segments of layers.
        config["activation_checkpointing"] = {"number_checkpoints": -(-again.layers // again.interval)}
    return {"deepspeed.json": json.dumps(config, indent=2) + "\n"}


def _module(plan: Plan, staged: LayerStages, again: CheckpointedLayers, tensor: int) -> str:
    """Python module that partitions layers by their class; DeepSpeed supports only equal numbers of layers per stage."""
    if not staged.is_even:
        shown = ", ".join(map(str, staged.layers))
        raise UnsupportedError(f"deepspeed requires equal numbers of layers per stage; the plan's stages have {shown}")
    if tensor > 1:
        raise UnsupportedError(
            f"deepspeed cannot combine automatic tensor parallelism with pipeline stages; the plan has {tensor} "
            "tensor parallel ranks per stage"
        )
    if again.layers not in (0, again.count):
        raise UnsupportedError(
            f"deepspeed can recompute only all layers of a stage; the plan recomputes {again.layers} of {again.count}"
        )
    body = _MODULE.format(stages=staged.num_stages, layers=staged.layers[0], interval=again.interval)
    return "\n".join(f"# {line}" for line in provenance_lines(plan)) + "\n" + body
