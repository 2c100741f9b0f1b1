"""Pipelines in terms of whole layers per chunk, as other tools configure them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from autosbp.costmodel.pipeline_program import PipelineProgram
from autosbp.costmodel.recompute import recomputable_blocks
from autosbp.errors import UnsupportedError
from autosbp.graph.ir import LogicalGraph
from autosbp.plan.plan import Plan
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


def layer_stages(plan: Plan, graph: LogicalGraph, target: str) -> LayerStages:
    """A plan's pipeline stages; a single stage with 0 layers if the plan has no pipeline.

    Raises:
        UnsupportedError: for a cut that is neither before a layer nor after the last one.
    """
    strategy = plan.strategy
    if strategy.pipeline is None:
        return LayerStages(1, (0,), ONE_F_ONE_B)
    bound = graph.bind(**dict.fromkeys(graph.symbols, strategy.micro_batch))
    blocks, pipeline = recomputable_blocks(bound), strategy.pipeline
    starts = {block[0]: at for at, block in enumerate(blocks)}
    if blocks:
        names = [node.name for node in bound.nodes if node.name in bound.parameter_dependent]
        starts |= dict.fromkeys(names[names.index(blocks[-1][-1]) + 1 :][:1], len(blocks))
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


def check_schedule(staged: LayerStages, known: Iterable[Schedule], target: str) -> None:
    """Raise ``UnsupportedError`` if a pipeline's schedule is not among those of the tool."""
    names = [schedule.name for schedule in known]
    if staged.num_stages > 1 and staged.schedule.name not in names:
        raise UnsupportedError(
            f"{target} supports the schedules {', '.join(names)}; the plan uses {staged.schedule.name}"
        )
    if staged.weights_lag is not None:
        raise UnsupportedError(
            f"{target} delays weight gradients by the number of stages; the plan delays them by "
            f"{staged.weights_lag} passes"
        )
