"""Megatron-LM: the parallelism and batch arguments of its training scripts, as the bash array that they expand."""

from __future__ import annotations

from autosbp.costmodel.calibration import Calibration
from autosbp.errors import UnsupportedError
from autosbp.export._base import headline, needed_graph
from autosbp.export._grid import grid_of
from autosbp.export._recompute import Recomputed, recomputed_layers
from autosbp.export._stages import Staged, refuse_schedule, staged_layers
from autosbp.graph.ir import LogicalGraph
from autosbp.plan import Plan
from autosbp.schedules import INTERLEAVED, ONE_F_ONE_B

_DTYPES = {"bfloat16": ["--bf16"], "float16": ["--fp16"]}
_OPTIMIZERS = {"adamw": "adam", "sgd": "sgd"}  # Megatron's adam decouples weight decay


def export_megatron(
    plan: Plan,
    graph: LogicalGraph | None = None,
    calibration: Calibration | None = None,  # noqa: ARG001
) -> dict[str, str]:
    """``megatron_args.sh``, to be sourced before ``torchrun pretrain_gpt.py "${AUTOSBP_ARGS[@]}"``."""
    graph = needed_graph(plan, graph, "megatron")
    grid, staged = grid_of(plan, graph, "megatron"), staged_layers(plan, graph, "megatron")
    refuse_schedule(staged, (ONE_F_ONE_B, INTERLEAVED), "megatron")
    arguments = [
        f"--tensor-model-parallel-size {grid.tensor}",
        *_stages(staged),
        "--context-parallel-size 1",
        f"--micro-batch-size {grid.replica_batch}",
        f"--global-batch-size {grid.global_batch}",
        f"--optimizer {_OPTIMIZERS[grid.optimizer]}",
        *_DTYPES.get(grid.dtype, []),
        *_recompute(recomputed_layers(plan, graph, "megatron"), staged),
    ]
    ranks = grid.data * grid.tensor * staged.num_stages
    each = f"{grid.data} data parallel replicas of {grid.tensor} ranks each"
    lines = [
        *(f"# {line}" for line in headline(plan)),
        f"# Start {ranks} ranks: {f'{staged.num_stages} stages of ' if staged.num_stages > 1 else ''}{each}.",
        "AUTOSBP_ARGS=(",
        *(f"    {argument}" for argument in arguments),
        ")",
    ]
    return {"megatron_args.sh": "\n".join(lines) + "\n"}


def _stages(staged: Staged) -> list[str]:
    """Layers are dealt out evenly, or as a layout says: chunks in the model's order, E the embedding, t a layer, L the loss
    (Megatron Core, Custom Pipeline Model Parallel Layout)."""
    size = f"--pipeline-model-parallel-size {staged.num_stages}"
    if staged.num_stages == 1:
        return [size]
    if staged.is_even:
        virtual = staged.num_virtual
        return [size, *([f"--num-virtual-stages-per-pipeline-rank {virtual}"] if virtual > 1 else [])]
    chunks = [f"t*{count}" if count else "" for count in staged.layers]
    chunks[0], chunks[-1] = f"E{chunks[0]}", f"{chunks[-1]}L"
    return [size, f"--pipeline-model-parallel-layout '{'|'.join(chunks)}'"]


def _recompute(found: Recomputed, staged: Staged) -> list[str]:
    """``uniform`` is every layer in runs of so many; ``block`` the first so many layers of each chunk, each by itself."""
    if not found.layers:
        return []
    if found.layers < found.count and not staged.is_even:
        raise UnsupportedError(
            "megatron recomputes as many layers of each chunk; the plan's chunks have different ones"
        )
    every = found.layers == found.count
    method, layers = ("uniform", found.interval) if every else ("block", found.layers // len(staged.layers))
    if method == "block" and found.interval > 1:
        raise UnsupportedError(
            f"megatron recomputes some of the layers one by one; the plan has {found.interval} together"
        )
    return ["--recompute-granularity full", f"--recompute-method {method}", f"--recompute-num-layers {layers}"]
