"""Hugging Face Accelerate: the YAML configuration of ``accelerate launch``, with DDP or FSDP2."""

from __future__ import annotations

from autosbp.costmodel.calibration import Calibration
from autosbp.export._base import provenance_lines, required_graph
from autosbp.graph.ir import LogicalGraph
from autosbp.graph.precision import FP8_MIXED
from autosbp.plan.plan import Plan
from autosbp.trainers import TRAINERS, ExpressedPlan

_PRECISIONS = {"bf16-mixed": "bf16", "fp16-mixed": "fp16", FP8_MIXED: "fp8"}
_FLOAT8_NOTE = (
    "# By default, the first and the last linear layer stay in bfloat16. To multiply all in float8, as in the plan:",
    "# every = partial(accelerate.utils.ao.filter_linear_layers, layers_to_filter=[])",
    "# Accelerator(kwargs_handlers=[AORecipeKwargs(module_filter_func=every)], ...). torch.compile fuses the scaling.",
)
_FLOAT8_CONFIG = (
    "fp8_config:",
    "  backend: AO",
    "  enable_fsdp_float8_all_gather: false",
    "  pad_inner_dim: true",
)


def export_accelerate(
    plan: Plan,
    graph: LogicalGraph | None = None,
    calibration: Calibration | None = None,  # noqa: ARG001
) -> dict[str, str]:
    """Write ``accelerate.yaml`` for ``accelerate launch --config_file``; comments have the settings of the script."""
    found = TRAINERS["accelerate"].express(required_graph(plan, graph, "accelerate"), plan.strategy, plan.precision)
    levels = plan.cluster.levels
    is_cpu, grid, again = plan.cluster.device.kind == "cpu", found.parallelism, found.checkpointed.layers > 0
    kind = "FSDP" if grid.sharded > 1 else "MULTI_CPU" if is_cpu else "MULTI_GPU" if found.num_ranks > 1 else "NO"
    lines = [
        *(f"# {line}" for line in provenance_lines(plan)),
        f"# In the script: DataLoader(batch_size={found.replica_batch}, ...) and, for {found.strategy.num_micro} "
        "microbatches a step,",
        f"# Accelerator(gradient_accumulation_plugin=GradientAccumulationPlugin({_accumulation(found)})).",
        *(["# Before that: model.gradient_checkpointing_enable()"] if again and grid.sharded == 1 else []),
        *(
            ["# Parameters and their optimizer state are bfloat16: load the model so."]
            if plan.precision == "bf16"
            else []
        ),
        *(
            ["# accelerate launch starts no ranks of CPUs: use torchrun with ACCELERATE_USE_CPU=true."]
            if kind == "MULTI_CPU"
            else []
        ),
        *(_FLOAT8_NOTE if found.is_float8 else ()),
        "compute_environment: LOCAL_MACHINE",
        f"distributed_type: {kind}",
        f"use_cpu: {str(is_cpu).lower()}",
        f"mixed_precision: '{_PRECISIONS.get(found.precision or '', 'no')}'",
        f"num_machines: {levels[0].count if len(levels) > 1 else 1}",
        "machine_rank: 0",
        f"num_processes: {found.num_ranks}",
        *(_FLOAT8_CONFIG if found.is_float8 else ()),
        *(_fsdp(found) if grid.sharded > 1 else []),
    ]
    return {"accelerate.yaml": "\n".join(lines) + "\n"}


def _accumulation(plan: ExpressedPlan) -> str:
    """Arguments of ``GradientAccumulationPlugin``; ZeRO-3 reduces gradients in every microbatch."""
    every = ", sync_each_batch=True" if plan.strategy.gather == "use" and plan.strategy.num_micro > 1 else ""
    return f"num_steps={plan.strategy.num_micro}{every}"


def _fsdp(plan: ExpressedPlan) -> list[str]:
    grid = plan.parallelism
    return [
        "fsdp_config:",
        "  fsdp_version: 2",
        f"  fsdp_reshard_after_forward: {str(plan.strategy.gather == 'use').lower()}",
        "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP",
        "  fsdp_state_dict_type: SHARDED_STATE_DICT",
        "  fsdp_offload_params: false",
        f"  fsdp_activation_checkpointing: {str(plan.checkpointed.layers > 0).lower()}",
        *(
            [
                "parallelism_config:",
                f"  parallelism_config_dp_replicate_size: {grid.replicated}",
                f"  parallelism_config_dp_shard_size: {grid.sharded}",
                "  parallelism_config_tp_size: 1",
                "  parallelism_config_cp_size: 1",
            ]
            if grid.replicated > 1
            else []
        ),
    ]
