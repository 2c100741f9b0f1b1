"""Pipeline stages of a strategy in whole layers, as other trainers configure them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from autosbp.costmodel.pipeline_program import PipelineProgram
from autosbp.costmodel.recompute import recomputable_blocks
from autosbp.errors import UnsupportedError
from autosbp.graph.ir import LogicalGraph
from autosbp.plan.plan import Strategy
from autosbp.plan.schedules import ONE_F_ONE_B, Schedule


@dataclass(frozen=True, slots=True)
class LayerStages:
    """Pipeline stages in whole layers.

    The first chunk also has all ops before the first layer, the last chunk all ops after the last layer. Chunk c is on
    stage c mod ``num_stages``; the stage is the outermost dimension of ranks.

    Args:
        num_stages: number of stages.
        layers: number of layers of each chunk, in the model's order.
        schedule: pipeline schedule.
        shared: names of parameters that several stages read, such as tied embeddings.
        weights_lag: see ``plan.pipeline.Pipeline``; None for the schedule's default.
    """

    num_stages: int
    layers: tuple[int, ...]
    schedule: Schedule
    shared: tuple[str, ...] = ()
    weights_lag: int | None = None

    @property
    def num_virtual(self) -> int:
        return len(self.layers) // self.num_stages

    @property
    def is_even(self) -> bool:
        return len(set(self.layers)) == 1

    @property
    def layer_ranges(self) -> list[range]:
        """Range of layer numbers of each chunk."""
        starts = [sum(self.layers[:at]) for at in range(len(self.layers) + 1)]
        return [range(start, stop) for start, stop in pairwise(starts)]


def layer_stages(graph: LogicalGraph, strategy: Strategy, target: str) -> LayerStages:
    """A strategy's pipeline stages; a single stage with 0 layers if it has no pipeline.

    Raises:
        UnsupportedError: a cut is inside a layer; ``target`` is the trainer's name in the message.
    """
    if strategy.pipeline is None:
        return LayerStages(1, (0,), ONE_F_ONE_B)
    bound = graph.bind(**dict.fromkeys(graph.symbols, strategy.micro_batch))
    blocks, pipeline = recomputable_blocks(bound), strategy.pipeline
    starts = layer_starts(bound)
    for cut in pipeline.cuts:
        if cut not in starts:
            raise UnsupportedError(
                f"{target} assigns whole layers to stages; the plan has a chunk that begins inside a layer, at {cut}"
            )
    ends = [0, *(starts[cut] for cut in pipeline.cuts), len(blocks)]
    stages = PipelineProgram(bound, strategy)
    shared = tuple(name for each in stages.shared if len(each.stages) > 1 for name in each.names)
    layers = tuple(stop - start for start, stop in pairwise(ends))
    return LayerStages(pipeline.num_stages, layers, pipeline.schedule, shared, pipeline.weights_lag)


def layer_starts(bound: LogicalGraph) -> dict[str, int]:
    """Number of layers before each possible cut: the first op of each layer, and the first op after the last layer."""
    blocks = recomputable_blocks(bound)
    starts = {block[0]: at for at, block in enumerate(blocks)}
    if blocks:
        names = [node.name for node in bound.nodes if node.name in bound.parameter_dependent]
        starts |= dict.fromkeys(names[names.index(blocks[-1][-1]) + 1 :][:1], len(blocks))
    return starts
