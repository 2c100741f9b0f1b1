"""Pipelines as other tools have them: whole layers in each chunk, by their numbers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from autosbp.costmodel.recompute import recomputable_blocks
from autosbp.costmodel.stages import Stages
from autosbp.errors import UnsupportedError
from autosbp.graph.ir import LogicalGraph
from autosbp.plan import Plan
from autosbp.schedules import ONE_F_ONE_B, Schedule


@dataclass(frozen=True, slots=True)
class Staged:
    """``layers`` of each model chunk, in the model's order: what stands before the first layer is in the first chunk, what
    follows the last one in the last. Chunk c lies on stage c mod ``num_stages``, which is the outermost of ranks. Parameters
    that several stages read, such as tied embeddings, are ``shared``."""

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
    def numbers(self) -> list[range]:
        """Of the layers of each chunk."""
        starts = [sum(self.layers[:at]) for at in range(len(self.layers) + 1)]
        return [range(start, stop) for start, stop in pairwise(starts)]


def staged_layers(plan: Plan, graph: LogicalGraph, target: str) -> Staged:
    """A plan's stages; one that holds no layers known where it has none.

    Raises:
        UnsupportedError: for a cut that is not before a layer or behind the last one.
    """
    strategy = plan.strategy
    if strategy.pipeline is None:
        return Staged(1, (0,), ONE_F_ONE_B)
    bound = graph.bind(**dict.fromkeys(graph.symbols, strategy.micro_batch))
    blocks, pipeline = recomputable_blocks(bound), strategy.pipeline
    starts = {block[0]: at for at, block in enumerate(blocks)}
    if blocks:
        names = [node.name for node in bound.nodes if node.name in bound.computed]
        starts |= dict.fromkeys(names[names.index(blocks[-1][-1]) + 1 :][:1], len(blocks))
    for cut in pipeline.cuts:
        if cut not in starts:
            raise UnsupportedError(
                f"{target} deals out whole layers to stages; the plan has a chunk that begins with {cut}, inside one"
            )
    ends = [0, *(starts[cut] for cut in pipeline.cuts), len(blocks)]
    stages = Stages(bound, strategy)
    shared = tuple(name for each in stages.shared if len(each.stages) > 1 for name in each.names)
    layers = tuple(stop - start for start, stop in pairwise(ends))
    return Staged(pipeline.num_stages, layers, pipeline.schedule, shared, pipeline.weights_lag)


def refuse_schedule(staged: Staged, known: Iterable[Schedule], target: str) -> None:
    """``UnsupportedError`` for stages whose schedule is not among those that a tool has."""
    names = [schedule.name for schedule in known]
    if staged.num_stages > 1 and staged.schedule.name not in names:
        raise UnsupportedError(f"{target} runs the schedules {', '.join(names)}; the plan has {staged.schedule.name}")
    if staged.weights_lag is not None:
        raise UnsupportedError(
            f"{target} lets gradients of weights wait as long as stages do; the plan's wait for {staged.weights_lag} passes"
        )
