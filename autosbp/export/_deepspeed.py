"""DeepSpeed: a JSON configuration, and for pipelines a Python module that builds the ``PipelineModule``.

Tensor parallelism uses DeepSpeed's AutoTP.
"""

from __future__ import annotations

import json
from typing import Any

from autosbp.costmodel.calibration import Calibration
from autosbp.export._base import provenance_lines, required_graph
from autosbp.graph.ir import LogicalGraph
from autosbp.plan.plan import Plan
from autosbp.trainers import TRAINERS, ExpressedPlan

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
    found = TRAINERS["deepspeed"].express(required_graph(plan, graph, "deepspeed"), plan.strategy, plan.precision)
    config: dict[str, Any] = {
        "train_batch_size": found.strategy.global_batch,
        "train_micro_batch_size_per_gpu": found.replica_batch,
        "gradient_accumulation_steps": found.strategy.num_micro,
        "gradient_clipping": 0.0,  # DeepSpeed clips to a norm of 1 by default; a plan does not clip
        "zero_optimization": _zero(found),
        "bf16": {"enabled": found.dtype == "bfloat16"},
        "fp16": {"enabled": found.dtype == "float16"},
    }
    if found.has_float32_master_weights:
        config["communication_data_type"] = "fp32"
        if found.parallelism.sharded > 1:
            config["data_types"] = {"grad_accum_dtype": "fp32"}
    again = found.checkpointed
    if found.staged.num_stages > 1:
        body = _MODULE.format(
            stages=found.staged.num_stages, layers=found.staged.layers[0], interval=found.checkpointed.interval
        )
        module = "\n".join(f"# {line}" for line in provenance_lines(plan)) + "\n" + body
        return {"deepspeed.json": json.dumps(config, indent=2) + "\n", "deepspeed_pipeline.py": module}
    if found.parallelism.tensor > 1:
        config["tensor_parallel"] = {"autotp_size": found.parallelism.tensor}
    if again.layers:
        # The model's code has to call deepspeed.checkpointing for this number of segments.
        config["activation_checkpointing"] = {"number_checkpoints": -(-again.layers // again.interval)}
    return {"deepspeed.json": json.dumps(config, indent=2) + "\n"}


def _zero(plan: ExpressedPlan) -> dict[str, Any]:
    """The ZeRO section; bucket sizes are in elements.

    Plans that gather parameters once a step also reduce gradients once a step. DeepSpeed does so with ZeRO-1; its ZeRO-2
    reduces gradients in every microbatch.
    """
    strategy = plan.strategy
    if plan.parallelism.sharded == 1:
        return {"stage": 0}
    stage = 3 if strategy.gather == "use" else 1 if strategy.num_micro > 1 else 2
    size = strategy.bucket_bytes // (4 if plan.dtype == "float32" else 2)
    gathered = "stage3_prefetch_bucket_size" if stage == 3 else "allgather_bucket_size"  # noqa: PLR2004
    return {
        "stage": stage,
        "overlap_comm": True,
        "reduce_bucket_size": size,
        gathered: size,
        **({"offload_optimizer": {"device": "cpu", "pin_memory": True}} if strategy.offload else {}),
    }
