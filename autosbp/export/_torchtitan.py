"""torchtitan: the parallelism and training sections of its TOML job configuration."""

from __future__ import annotations

from autosbp.costmodel.calibration import Calibration
from autosbp.errors import UnsupportedError
from autosbp.export._base import headline, needed_graph
from autosbp.export._grid import grid_of
from autosbp.export._recompute import recomputed_layers
from autosbp.graph.ir import LogicalGraph
from autosbp.plan import Plan

_OPTIMIZERS = {"adamw": "AdamW"}
_DTYPES = ("float32", "bfloat16")
_TENSOR_NOTE = (
    "# torchtitan keeps the norms of tensor parallel ranks split over the sequence: an all-gather and a reduce-scatter",
    "# move the bytes of the plan's all-reduce.",
)


def export_torchtitan(
    plan: Plan,
    graph: LogicalGraph | None = None,
    calibration: Calibration | None = None,  # noqa: ARG001
) -> dict[str, str]:
    """``torchtitan.toml``; replicas are whole (no FSDP), as the plan stores parameters."""
    grid = grid_of(plan, needed_graph(plan, graph, "torchtitan"), "torchtitan")
    if grid.optimizer not in _OPTIMIZERS or grid.dtype not in _DTYPES:
        raise UnsupportedError(f"torchtitan cannot train {grid.dtype} parameters with {grid.optimizer}")
    again = recomputed_layers(plan, needed_graph(plan, graph, "torchtitan"), "torchtitan")
    if again.layers and (again.layers, again.interval) != (again.count, 1):
        shown = f"the first {again.layers} of {again.count}, {again.interval} together"
        raise UnsupportedError(f"torchtitan recomputes every layer, each by itself; the plan has {shown}")
    lines = [
        *(f"# {line}" for line in headline(plan)),
        f"# Merge into a job configuration and start {grid.data * grid.tensor} ranks.",
        *(_TENSOR_NOTE if grid.tensor > 1 else ()),
        "",
        "[optimizer]",
        f'name = "{_OPTIMIZERS[grid.optimizer]}"',
        "",
        "[training]",
        f'dtype = "{grid.dtype}"',
        f'mixed_precision_param = "{grid.dtype}"',
        f"local_batch_size = {grid.replica_batch}",
        f"global_batch_size = {grid.global_batch}",
        "",
        "[parallelism]",
        f"data_parallel_replicate_degree = {grid.data}",
        "data_parallel_shard_degree = 1",
        f"tensor_parallel_degree = {grid.tensor}",
        "pipeline_parallel_degree = 1",
        "context_parallel_degree = 1",
        "",
        "[activation_checkpoint]",
        f'mode = "{"full" if again.layers else "none"}"',
    ]
    return {"torchtitan.toml": "\n".join(lines) + "\n"}
