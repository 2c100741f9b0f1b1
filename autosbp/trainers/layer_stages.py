"""Pipelines in terms of whole layers per chunk, as other tools configure them."""

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
    """Number of layers of each model chunk, in the model's order.

    The first chunk also holds everything before the first layer, the last chunk everything after the last layer. Chunk
    c lies on stage c mod ``num_stages``; the stage is the outermost rank dimension. ``shared`` names the parameters
    that several stages read, such as tied embeddings.
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
        UnsupportedError: for a cut that is neither before a layer nor after the last one.
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
    """Number of layers before each op that begins a layer, and before the first op after the last layer."""
    blocks = recomputable_blocks(bound)
    starts = {block[0]: at for at, block in enumerate(blocks)}
    if blocks:
        names = [node.name for node in bound.nodes if node.name in bound.parameter_dependent]
        starts |= dict.fromkeys(names[names.index(blocks[-1][-1]) + 1 :][:1], len(blocks))
    return starts
