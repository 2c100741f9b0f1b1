"""Megatron-LM: the parallelism and batch arguments of its training scripts, as the bash array that they expand."""

from __future__ import annotations

from autosbp.costmodel.calibration import Calibration
from autosbp.errors import UnsupportedError
from autosbp.export._base import headline, needed_graph
from autosbp.export._grid import grid_of
from autosbp.export._recompute import Recomputed, recomputed_layers
from autosbp.graph.ir import LogicalGraph
from autosbp.plan import Plan

_DTYPES = {"bfloat16": ["--bf16"], "float16": ["--fp16"]}
_OPTIMIZERS = {"adamw": "adam", "sgd": "sgd"}  # Megatron's adam decouples weight decay


def export_megatron(
    plan: Plan,
    graph: LogicalGraph | None = None,
    calibration: Calibration | None = None,  # noqa: ARG001
) -> dict[str, str]:
    """``megatron_args.sh``, to be sourced before ``torchrun pretrain_gpt.py "${AUTOSBP_ARGS[@]}"``."""
    grid = grid_of(plan, needed_graph(plan, graph, "megatron"), "megatron")
    arguments = [
        f"--tensor-model-parallel-size {grid.tensor}",
        "--pipeline-model-parallel-size 1",
        "--context-parallel-size 1",
        f"--micro-batch-size {grid.replica_batch}",
        f"--global-batch-size {grid.global_batch}",
        f"--optimizer {_OPTIMIZERS[grid.optimizer]}",
        *_DTYPES.get(grid.dtype, []),
        *_recompute(recomputed_layers(plan, needed_graph(plan, graph, "megatron"), "megatron")),
    ]
    lines = [
        *(f"# {line}" for line in headline(plan)),
        f"# Start {grid.data * grid.tensor} ranks: {grid.data} data parallel replicas of {grid.tensor} ranks each.",
        "AUTOSBP_ARGS=(",
        *(f"    {argument}" for argument in arguments),
        ")",
    ]
    return {"megatron_args.sh": "\n".join(lines) + "\n"}


def _recompute(found: Recomputed) -> list[str]:
    """``uniform`` is every layer in runs of so many; ``block`` the first so many layers, each by itself."""
    if not found.layers:
        return []
    method, layers = ("uniform", found.interval) if found.layers == found.count else ("block", found.layers)
    if method == "block" and found.interval > 1:
        raise UnsupportedError(
            f"megatron recomputes some of the layers one by one; the plan has {found.interval} together"
        )
    return ["--recompute-granularity full", f"--recompute-method {method}", f"--recompute-num-layers {layers}"]
