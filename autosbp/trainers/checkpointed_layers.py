"""Activation checkpointing of a strategy in whole layers, as other trainers configure it."""

from __future__ import annotations

from dataclasses import dataclass

from autosbp.costmodel.recompute import checkpointing_segments, recomputable_blocks
from autosbp.errors import UnsupportedError
from autosbp.graph.ir import LogicalGraph
from autosbp.plan.plan import Strategy


@dataclass(frozen=True, slots=True)
class CheckpointedLayers:
    """Checkpointing of the first layers of each chunk.

    Args:
        layers: number of checkpointed layers over all chunks; 0 without checkpointing.
        count: number of layers of the model.
        interval: number of layers per checkpointed segment.
    """

    layers: int
    count: int
    interval: int


def checkpointed_layers(graph: LogicalGraph, strategy: Strategy, target: str) -> CheckpointedLayers:
    """The layers that a strategy checkpoints; ``target`` is the trainer's name in errors.

    Raises:
        UnsupportedError: checkpointed are not the first layers of each chunk in segments of equal length.
    """
    runs = strategy.recompute
    if not runs:
        return CheckpointedLayers(0, 0, 0)
    blocks = recomputable_blocks(graph.bind(**dict.fromkeys(graph.symbols, strategy.micro_batch)))
    cuts = strategy.pipeline.cuts if strategy.pipeline else ()
    for interval in range(1, len(blocks) + 1):
        for kept in range(len(blocks)):
            if checkpointing_segments(blocks, interval, cuts, kept) == runs:
                return CheckpointedLayers(len(checkpointing_segments(blocks, 1, cuts, kept)), len(blocks), interval)
    raise UnsupportedError(
        f"{target} can recompute only whole layers, the first N of each chunk; the plan recomputes other ones, "
        f"starting with {list(runs[0])}; plan with --recompute 1 to recompute all layers"
    )
