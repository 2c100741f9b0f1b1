"""Megatron-LM: parallelism and batch arguments of its training scripts, as a bash array."""

from __future__ import annotations

from autosbp.costmodel.calibration import Calibration
from autosbp.errors import UnsupportedError
from autosbp.export._base import provenance_lines, required_graph
from autosbp.export._checkpointed_layers import CheckpointedLayers, checkpointed_layers
from autosbp.export._dp_tp_grid import parallel_grid
from autosbp.export._layer_stages import LayerStages, check_schedule, layer_stages
from autosbp.graph.ir import LogicalGraph
from autosbp.plan.plan import Plan
from autosbp.plan.schedules import INTERLEAVED, ONE_F_ONE_B

_DTYPES = {"bfloat16": ["--bf16"], "float16": ["--fp16"]}
_OPTIMIZERS = {"adamw": "adam", "sgd": "sgd"}  # Megatron's adam decouples weight decay (AdamW)


def export_megatron(
    plan: Plan,
    graph: LogicalGraph | None = None,
    calibration: Calibration | None = None,  # noqa: ARG001
) -> dict[str, str]:
    """Write ``megatron_args.sh``; source it before ``torchrun pretrain_gpt.py "${AUTOSBP_ARGS[@]}"``."""
    graph = required_graph(plan, graph, "megatron")
    grid, staged = parallel_grid(plan, graph, "megatron"), layer_stages(plan, graph, "megatron")
    check_schedule(staged, (ONE_F_ONE_B, INTERLEAVED), "megatron")
    grid.refuse_without_master_weights("megatron")
    arguments = [
        f"--tensor-model-parallel-size {grid.tensor}",
        *_stages(staged),
        "--context-parallel-size 1",
        f"--micro-batch-size {grid.replica_batch}",
        f"--global-batch-size {grid.global_batch}",
        f"--optimizer {_OPTIMIZERS[grid.optimizer]}",
        *_DTYPES.get(grid.dtype, []),
        *(["--accumulate-allreduce-grads-in-fp32"] if grid.full_precision_gradients else []),
        *_recompute(checkpointed_layers(plan, graph, "megatron"), staged),
    ]
    ranks = grid.data * grid.tensor * staged.num_stages
    each = f"{grid.data} data parallel replicas of {grid.tensor} ranks each"
    lines = [
        *(f"# {line}" for line in provenance_lines(plan)),
        f"# Start {ranks} ranks: {f'{staged.num_stages} stages of ' if staged.num_stages > 1 else ''}{each}.",
        "AUTOSBP_ARGS=(",
        *(f"    {argument}" for argument in arguments),
        ")",
    ]
    return {"megatron_args.sh": "\n".join(lines) + "\n"}


def _stages(staged: LayerStages) -> list[str]:
    """Arguments of the pipeline: an even partition, or a layout string.

    The layout lists chunks in the model's order: E is the embedding, t a layer, L the loss (Megatron Core, Custom
    Pipeline Model Parallel Layout).
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


def _recompute(found: CheckpointedLayers, staged: LayerStages) -> list[str]:
    """``uniform`` checkpoints all layers in segments; ``block`` the first layers of each chunk, one by one."""
    if not found.layers:
        return []
    if found.layers < found.count and not staged.is_even:
        raise UnsupportedError(
            "megatron recomputes the same number of layers in each chunk; the plan's chunks have different numbers "
            "of layers"
        )
    every = found.layers == found.count
    method, layers = ("uniform", found.interval) if every else ("block", found.layers // len(staged.layers))
    if method == "block" and found.interval > 1:
        raise UnsupportedError(
            "megatron can recompute a subset of the layers only one by one; the plan recomputes segments of "
            f"{found.interval} layers"
        )
    return ["--recompute-granularity full", f"--recompute-method {method}", f"--recompute-num-layers {layers}"]
