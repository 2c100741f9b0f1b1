"""torchtitan: the parallelism and training sections of its TOML job configuration."""

from __future__ import annotations

from autosbp.costmodel.calibration import Calibration
from autosbp.errors import UnsupportedError
from autosbp.export._base import provenance_lines, required_graph
from autosbp.export._checkpointed_layers import checkpointed_layers
from autosbp.export._dp_tp_grid import parallel_grid
from autosbp.export._layer_stages import LayerStages, check_schedule, layer_stages
from autosbp.graph.ir import LogicalGraph
from autosbp.plan.plan import Plan
from autosbp.plan.schedules import GPIPE, INTERLEAVED, ONE_F_ONE_B, ZERO_BUBBLE

_OPTIMIZERS = {"adamw": "AdamW"}
_DTYPES = ("float32", "bfloat16")
_SCHEDULES = {
    GPIPE: "GPipe",
    ONE_F_ONE_B: "1F1B",
    INTERLEAVED: "Interleaved1F1B",
    ZERO_BUBBLE: "InterleavedZeroBubble",
}
"""Names of schedules in ``torch.distributed.pipelining``."""
_TENSOR_NOTE = (
    "# torchtitan keeps the norms of tensor parallel ranks split over the sequence: an all-gather and a reduce-scatter",
    "# move the bytes of the plan's all-reduce.",
)


def export_torchtitan(
    plan: Plan,
    graph: LogicalGraph | None = None,
    calibration: Calibration | None = None,  # noqa: ARG001
) -> dict[str, str]:
    """Write ``torchtitan.toml``; replicas hold whole parameters (no FSDP), as the plan stores them."""
    graph = required_graph(plan, graph, "torchtitan")
    grid, staged = parallel_grid(plan, graph, "torchtitan"), layer_stages(plan, graph, "torchtitan")
    check_schedule(staged, _SCHEDULES, "torchtitan")
    if staged.shared:
        raise UnsupportedError(
            f"torchtitan cannot share parameters between stages; several stages of the plan read {staged.shared[0]}"
        )
    if grid.optimizer not in _OPTIMIZERS or grid.dtype not in _DTYPES:
        raise UnsupportedError(f"torchtitan cannot train {grid.dtype} parameters with {grid.optimizer}")
    again = checkpointed_layers(plan, graph, "torchtitan")
    if again.layers and (again.layers, again.interval) != (again.count, 1):
        shown = f"the first {again.layers} of {again.count} in segments of {again.interval}"
        raise UnsupportedError(f"torchtitan can recompute only every layer, one by one; the plan recomputes {shown}")
    lines = [
        *(f"# {line}" for line in provenance_lines(plan)),
        f"# Merge into a job configuration and start {grid.data * grid.tensor * staged.num_stages} ranks.",
        *(_TENSOR_NOTE if grid.tensor > 1 else ()),
        "",
        "[optimizer]",
        f'name = "{_OPTIMIZERS[grid.optimizer]}"',
        "",
        "[training]",
        f'dtype = "{"float32" if grid.full_precision_gradients else grid.dtype}"',
        f'mixed_precision_param = "{grid.dtype}"',
        *(['mixed_precision_reduce = "float32"'] if grid.full_precision_gradients else []),
        f"local_batch_size = {grid.replica_batch * (grid.num_micro if staged.num_stages > 1 else 1)}",
        f"global_batch_size = {grid.global_batch}",
        "",
        "[parallelism]",
        f"data_parallel_replicate_degree = {grid.data}",
        "data_parallel_shard_degree = 1",
        f"tensor_parallel_degree = {grid.tensor}",
        f"pipeline_parallel_degree = {staged.num_stages}",
        *(_stages(staged, grid.replica_batch) if staged.num_stages > 1 else ()),
        "context_parallel_degree = 1",
        "",
        "[activation_checkpoint]",
        f'mode = "{"full" if again.layers else "none"}"',
    ]
    return {"torchtitan.toml": "\n".join(lines) + "\n"}


def _stages(staged: LayerStages, micro_batch: int) -> list[str]:
    """TOML lines of the pipeline; modules are named as in torchtitan's decoders."""
    parts = [[f"layers.{at}" for at in numbers] for numbers in staged.layer_ranges]
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", "output"]
    return [
        f'pipeline_parallel_schedule = "{_SCHEDULES[staged.schedule]}"',
        f"pipeline_parallel_microbatch_size = {micro_batch}",
        "module_fqns_per_model_part = [",
        *(f"    [{', '.join(f'{chr(34)}{name}{chr(34)}' for name in part)}]," for part in parts),
        "]",
    ]
