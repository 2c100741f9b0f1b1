"""Predict the iteration time of one published run from one cluster preset."""

from __future__ import annotations

from dataclasses import dataclass, replace

from autosbp.cluster.hardware import EfficiencyCurves
from autosbp.cluster.spec import Cluster, load_cluster
from autosbp.costmodel.block_structure import BlockStructure, find_blocks
from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.cross_mesh_resharding import TransferModel
from autosbp.costmodel.network import NetworkModel
from autosbp.costmodel.optimizer import adam_step_bytes
from autosbp.costmodel.pipeline_timing import ChunkTimes, pipeline_time
from autosbp.costmodel.recompute import recomputed_ops
from autosbp.costmodel.stage_times import PassTimeModel, PassTimes
from autosbp.graph.ir import DTYPE_BYTES, LogicalGraph
from autosbp.plan.plan import Strategy
from autosbp.program.placed_mesh import placed_mesh
from autosbp.sbp.boxing import split_factor
from autosbp.sbp.layout import parse_nd_sbp
from benchmarks.megatron_validation._layouts import gpt, megatron_strategy, stream
from benchmarks.megatron_validation._rows import Row

PRESET = "dgx-a100-80g"


@dataclass(frozen=True, slots=True)
class Parts:
    """Parts of the busiest stage's step, in seconds; ``tensor_parallel_s`` is the time that collectives add to compute."""

    forward_s: float
    backward_s: float
    recompute_s: float
    tensor_parallel_s: float
    p2p_s: float
    bubble_s: float
    optimizer_s: float

    @property
    def step_s(self) -> float:
        return float(sum(getattr(self, name) for name in Parts.__slots__))


def preset_curves() -> EfficiencyCurves:
    """The efficiency curves of the preset's kernels."""
    curves = load_cluster(PRESET).device.curves
    assert curves is not None
    return curves


def predict(row: Row, curves: EfficiencyCurves) -> Parts:
    """Parts of the predicted iteration time on the preset's nodes, with ``curves`` for their devices."""
    node = load_cluster(f"{PRESET}:1x{row.tp}")
    node = replace(node, device=replace(node.device, curves=curves))
    symbolic = gpt(row.hidden, row.ffn, row.heads, row.seq_len)
    graph = symbolic.bind(**dict.fromkeys(symbolic.symbols, row.micro_batch))
    strategy = megatron_strategy(graph, node, row)
    model = PassTimeModel(graph, strategy, BoxingModel(NetworkModel(node), strategy.mesh), curves)
    blocks = find_blocks(graph)
    chunks = _chunks(model, blocks, row, recomputed_ops(graph, row.mode))
    pipeline = pipeline_time(
        [ChunkTimes(chunk.forward_total_s, chunk.backward_total_s) for chunk in chunks],
        row.pp,
        row.global_batch // row.micro_batch,
        _send_s(row),
    )
    spent = sum(chunks[pipeline.stage :: row.pp], PassTimes())
    count = row.global_batch // row.micro_batch
    return Parts(
        forward_s=count * spent.forward_s,
        backward_s=count * spent.backward_s,
        recompute_s=count * spent.recompute_s,
        tensor_parallel_s=count * (spent.forward_comm_s + spent.backward_comm_s + spent.recompute_comm_s),
        p2p_s=pipeline.send_s,
        bubble_s=pipeline.bubble_s,
        optimizer_s=_update_s(graph, strategy, blocks, node, row),
    )


def _chunks(model: PassTimeModel, blocks: BlockStructure, row: Row, recomputed: frozenset[str]) -> list[PassTimes]:
    """Times of the model's chunks: equal shares of blocks, the embedding in the first, the loss in the last."""
    count = row.pp * row.interleave
    block = model.times(blocks.blocks[-1], recomputed)
    chunks = [sum([block] * (row.layers // count), PassTimes()) for _ in range(count)]
    chunks[0] += model.times(blocks.before, recomputed)
    chunks[-1] += model.times(blocks.after, recomputed)
    return chunks


def _send_s(row: Row) -> float:
    """Seconds to send an activation to the next node's stage, or its gradient back, by the cheapest path.

    If the activation is replicated, each device sends a part, which is gathered there (Narayanan et al. 2021, section
    4.1).
    """
    if row.pp == 1:
        return 0.0
    counts = (2, row.tp)
    here, there = (placed_mesh(range(at * row.tp, (at + 1) * row.tp), (row.tp,), counts) for at in range(2))
    layout = parse_nd_sbp(stream(row))
    transfers = TransferModel(NetworkModel(load_cluster(f"{PRESET}:2x{row.tp}")))
    shape = (row.micro_batch, row.seq_len, row.hidden)
    return transfers.plan(layout, here, layout, there, shape, "bfloat16").total_s / 2


def _update_s(graph: LogicalGraph, strategy: Strategy, blocks: BlockStructure, node: Cluster, row: Row) -> float:
    """Seconds of the optimizer step, for the stage with the most parameters.

    Includes the reduction of gradients that the first and the last stage share.
    """
    readers = [_read(graph, part) for part in (blocks.before, blocks.blocks[-1], blocks.after)]
    first, block, last = (_elements(graph, strategy, names) for names in readers)
    stage = row.layers // row.pp * block
    most = stage + max(first, last) if row.pp > 1 else stage + _elements(graph, strategy, readers[0] | readers[2])
    width = DTYPE_BYTES["bfloat16"]
    seconds = most * adam_step_bytes(width) / ComputeModel(node.device).copy_bytes_per_s
    if row.pp > 1:
        shared = _elements(graph, strategy, readers[0] & readers[2])
        network = NetworkModel(load_cluster(f"{PRESET}:{row.pp}x{row.tp}"))
        seconds += network.time_s("all_reduce", width * shared, (2, 1))
    return seconds


def _read(graph: LogicalGraph, names: tuple[str, ...]) -> frozenset[str]:
    """Parameters that the given ops read."""
    inside = frozenset(names)
    return frozenset(
        ref.name
        for node in graph.nodes
        if node.name in inside
        for ref in node.refs()
        if ref.name in graph.parameter_names
    )


def _elements(graph: LogicalGraph, strategy: Strategy, names: frozenset[str]) -> float:
    """Parameter elements on one device."""
    return sum(
        leaf.meta.num_bytes / DTYPE_BYTES[leaf.meta.dtype] / split_factor(strategy.parameters[leaf.name], strategy.mesh)
        for leaf in graph.parameters
        if leaf.name in names
    )
