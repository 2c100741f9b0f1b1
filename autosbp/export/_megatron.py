"""Megatron-LM: parallelism and batch arguments of its training scripts, as a bash array."""

from __future__ import annotations

from autosbp.costmodel.calibration import Calibration
from autosbp.export._base import provenance_lines, required_graph
from autosbp.graph.ir import LogicalGraph
from autosbp.plan.plan import Plan
from autosbp.trainers import TRAINERS, ExpressedPlan
from autosbp.trainers.layer_stages import LayerStages

_DTYPES = {"bfloat16": ["--bf16"], "float16": ["--fp16"]}
_OPTIMIZERS = {"adamw": "adam", "sgd": "sgd"}  # Megatron's adam decouples weight decay (AdamW)


def export_megatron(
    plan: Plan,
    graph: LogicalGraph | None = None,
    calibration: Calibration | None = None,  # noqa: ARG001
) -> dict[str, str]:
    """Write ``megatron_args.sh``; source it before ``torchrun pretrain_gpt.py "${AUTOSBP_ARGS[@]}"``."""
    found = TRAINERS["megatron"].express(required_graph(plan, graph, "megatron"), plan.strategy, plan.precision)
    grid, staged = found.parallelism, found.staged
    arguments = [
        f"--tensor-model-parallel-size {grid.tensor}",
        *(["--sequence-parallel"] if grid.tensor > 1 and grid.is_sequence_parallel else []),
        *_stages(staged),
        "--context-parallel-size 1",
        f"--micro-batch-size {found.replica_batch}",
        f"--global-batch-size {found.strategy.global_batch}",
        f"--optimizer {_OPTIMIZERS[found.strategy.optimizer]}",
        *_sharding(found),
        *_DTYPES.get(found.dtype, []),
        *(["--fp8-format hybrid", "--fp8-recipe tensorwise"] if found.is_float8 else []),
        *(["--accumulate-allreduce-grads-in-fp32"] if found.has_float32_master_weights else []),
        *_recompute(found),
    ]
    each = f"{grid.data} data parallel replicas of {grid.tensor} ranks each"
    lines = [
        *(f"# {line}" for line in provenance_lines(plan)),
        *(["# Megatron's output layer stays in bfloat16."] if found.is_float8 else []),
        f"# Start {found.num_ranks} ranks: {f'{staged.num_stages} stages of ' if staged.num_stages > 1 else ''}{each}.",
        "AUTOSBP_ARGS=(",
        *(f"    {argument}" for argument in arguments),
        ")",
    ]
    return {"megatron_args.sh": "\n".join(lines) + "\n"}


def _sharding(plan: ExpressedPlan) -> list[str]:
    """Arguments of the distributed optimizer and of overlapped communication; bucket sizes are in elements."""
    grid = plan.parallelism
    if grid.data == 1:
        return []
    size = plan.strategy.bucket_bytes // (4 if plan.dtype == "float32" else 2)
    overlapped = ["--overlap-grad-reduce", f"--ddp-bucket-size {size}"]
    if grid.sharded == 1:
        return overlapped
    offload = ["--optimizer-cpu-offload", "--use-precision-aware-optimizer"] if plan.strategy.offload else []
    instances = [f"--num-distributed-optimizer-instances {grid.replicated}"] if grid.replicated > 1 else []
    return ["--use-distributed-optimizer", *instances, *overlapped, "--overlap-param-gather", *offload]


def _stages(staged: LayerStages) -> list[str]:
    """Arguments of the pipeline: an even partition, or a layout string.

    The layout lists chunks in the model's order; E is the embedding, t a layer, L the loss (Megatron Core documentation,
    Custom Pipeline Model Parallel Layout).
    """
    size = f"--pipeline-model-parallel-size {staged.num_stages}"
    if staged.num_stages == 1:
        return [size]
    if staged.is_even:
        virtual = staged.num_virtual
        return [size, *([f"--num-virtual-stages-per-pipeline-rank {virtual}"] if virtual > 1 else [])]
    chunks = [f"t*{count}" if count else "" for count in staged.layers]
    chunks[0], chunks[-1] = f"E{chunks[0]}", f"{chunks[-1]}L"
    return [size, f"--pipeline-model-parallel-layout '{'|'.join(chunks)}'"]


def _recompute(plan: ExpressedPlan) -> list[str]:
    """Arguments of activation checkpointing: ``uniform`` for all layers, ``block`` for the first ones of each chunk."""
    found = plan.checkpointed
    if not found.layers:
        return []
    every = found.layers == found.count
    method, layers = ("uniform", found.interval) if every else ("block", found.layers // len(plan.staged.layers))
    return ["--recompute-granularity full", f"--recompute-method {method}", f"--recompute-num-layers {layers}"]
