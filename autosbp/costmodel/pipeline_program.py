"""Programs of the chunks of a pipelined strategy, and all communication of a stage's rank in a training step.

``costmodel.step_collectives`` gives the collectives inside a chunk. This module adds the P2P messages between stages:
receives precede their pass, sends follow it. After the last pass come deferred gradient reductions, sums of parameters
that several stages store, and the broadcast of the losses from the last stage.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from autosbp.costmodel.step_collectives import Collective, StepCollectives
from autosbp.errors import InputError
from autosbp.graph.ir import LogicalGraph, Parameter, Ref
from autosbp.graph.pipeline_chunks import ChunkGraph, cut_graph
from autosbp.plan.pipeline import Pipeline
from autosbp.plan.plan import Strategy
from autosbp.program.activation_checkpointing import check_recompute
from autosbp.program.deferred_wgrad import can_defer_wgrad, gradients_return_at_end
from autosbp.program.gradient_buckets import local_gradient_bytes
from autosbp.program.parameter_flow import ParameterFlow, parameter_flow
from autosbp.program.program import output_layout
from autosbp.program.sync_checks import check_sync, gradient_reduction_axes
from autosbp.sbp.boxing import split_factor
from autosbp.schedules.passes import BACKWARD, FORWARD, Pass, stage_passes
from autosbp.utils.batching import batch_by_kind
from autosbp.utils.hashed_key import HashedKey


@dataclass(frozen=True, slots=True)
class StageCall:
    """Communication of a rank with the ranks at the same position in other ``stages``.

    ``kind`` is ``p2p`` (from the first of two stages to the second), ``all_reduce`` or ``broadcast``. The other fields
    are as in ``Collective``.
    """

    kind: str
    num_bytes: int
    stages: tuple[int, ...]
    phase: str
    cause: str


@dataclass(frozen=True, slots=True)
class SharedGradients:
    """Gradients of parameters that several chunks read.

    Each stage reduces them over ``axes`` if there are any. They are then summed over ``stages`` if there are several,
    in one message per step.
    """

    names: tuple[str, ...]
    axes: tuple[int, ...]
    stages: tuple[int, ...]


@dataclass(frozen=True)
class PipelineChunk:
    """One chunk with its parameter flow.

    ``graph`` is bound at the microbatch size; ``shared`` are the parameters that other chunks read too.
    """

    index: int
    graph: ChunkGraph
    strategy: Strategy
    shared: frozenset[str]

    @cached_property
    def flow(self) -> ParameterFlow:
        return parameter_flow(self.graph, self.strategy, self.shared)


class PipelineProgram:
    """A pipelined strategy, cut into chunks.

    Args:
        graph: the whole graph, bound at the strategy's microbatch size.
        strategy: must have a pipeline.

    Raises:
        InputError: for a pipeline that does not fit the graph, and as ``program_items`` does.
    """

    def __init__(self, graph: LogicalGraph, strategy: Strategy) -> None:
        if strategy.pipeline is None:
            raise InputError("strategy.pipeline", None, "expected a pipeline")
        self.graph, self.strategy, self.pipeline = graph, strategy, strategy.pipeline
        self.pipeline.check(strategy.num_micro)
        # ``costmodel.chunk_cache``: the key of each chunk, and one shared object per distinct key.
        self.kinds: dict[int, Hashable] = {}
        self.interned_chunk_keys: dict[Hashable, Hashable] = {}
        graphs = cut_graph(graph, self.pipeline.cuts)
        check_recompute(graph, strategy, graphs)
        readers: dict[str, list[int]] = {}
        for index, part in enumerate(graphs):
            for leaf in part.parameters:
                readers.setdefault(leaf.name, []).append(index)
        shared = frozenset(name for name, chunks in readers.items() if len(chunks) > 1)
        check_sync(graph, strategy, apart=shared)
        self.chunks = tuple(PipelineChunk(index, part, strategy, shared) for index, part in enumerate(graphs))
        # A parameter that no gradient reaches gets no gradient, as on one device.
        reading = {index for name in shared for index in readers[name]}
        reached = shared & {name for index in reading for name in self.chunks[index].flow.sources}
        self.shared = _shared(graph, strategy, {name: readers[name] for name in readers if name in reached})

    @cached_property
    def key(self) -> Hashable:
        """Key that is equal for strategies of one graph under which equal chunks have equal costs.

        Equal chunks have the same ``costmodel.chunk_cache.chunk_key``. Effects of the schedule on costs are excluded.
        """
        strategy = self.strategy
        paths = HashedKey(frozenset(strategy.paths.items()))
        return strategy.mesh, paths, strategy.num_micro, strategy.gather, strategy.bucket_bytes, strategy.offload

    @cached_property
    def may_defer_wgrads(self) -> bool:
        """Whether weight gradients may be computed in passes of their own."""
        return can_defer_wgrad(self.graph, self.strategy)

    def of(self, stage: int) -> tuple[PipelineChunk, ...]:
        """The chunks of one stage."""
        return tuple(self.chunks[index] for index in self.pipeline.chunks_of(stage))

    def parameters_of(self, stage: int) -> tuple[str, ...]:
        """Names of the parameters that a stage stores, in the graph's order."""
        return tuple(leaf.name for leaf in self._stored[stage])

    def trained_of(self, stage: int) -> tuple[Parameter, ...]:
        """The trained parameters that a stage stores, in the graph's order."""
        return tuple(leaf for leaf in self._stored[stage] if leaf.name in self._trained)

    def served_of(self, stage: int) -> frozenset[str]:
        """The parameters of a stage that parameter servers step."""
        return frozenset[str]().union(*(chunk.flow.served_parameters for chunk in self.of(stage)))

    @cached_property
    def _trained(self) -> frozenset[str]:
        return frozenset(leaf.name for leaf in self.graph.trained)

    @cached_property
    def _stored(self) -> tuple[tuple[Parameter, ...], ...]:
        """Parameters that each stage stores; computed for all stages in one sweep, because models may have many of both."""
        keepers: dict[str, set[int]] = {}
        for chunk in self.chunks:
            for leaf in chunk.graph.parameters:
                keepers.setdefault(leaf.name, set()).add(self.pipeline.stage_of(chunk.index))
        found: list[list[Parameter]] = [[] for _ in range(self.pipeline.num_stages)]
        for leaf in self.graph.parameters:
            for stage in keepers.get(leaf.name, ()):
                found[stage].append(leaf)
        return tuple(map(tuple, found))

    def sent_values(self, chunk: int) -> list[tuple[Ref, int, bool]]:
        """Values that a chunk sends to the next one: (value, bytes on one rank, whether a gradient comes back)."""
        return [
            (ref, local_value_bytes(self.graph, self.strategy, ref), self.graph.has_gradient(ref))
            for ref in self.chunks[chunk].graph.results
        ]

    def calls(self, stage: int) -> list[Collective | StageCall]:
        """All communication of one rank of a stage during one step, in order."""
        return [call for calls in self._calls(stage) for call in calls]

    def _calls(self, stage: int) -> Iterator[Iterable[Collective | StageCall]]:
        for one in stage_passes(self.pipeline, stage, self.strategy.num_micro):
            yield self._messages(one, arriving=True)
            yield self.pass_collectives(one)
            yield self._messages(one, arriving=False)
        for chunk in self.of(stage):
            late = self._collectives[chunk.index]
            if gradients_return_at_end(self.strategy):
                yield late.all_gradient_reduce_scatters()
            yield late.all_bucket_all_reduces() if self.pipeline.schedule.splits_backward else late.at_end()
        yield self.ending(stage)
        own = [self._collectives[chunk.index] for chunk in self.of(stage)]
        yield (call for chunk in own for call in chunk.message_reductions())
        yield (call for chunk in own for call in chunk.message_updates())

    def ending(self, stage: int) -> list[Collective | StageCall]:
        """Communication at the end of a step: sums of shared parameters' gradients, then the losses."""
        calls = [call for shared in self.shared if stage in shared.stages for call in self.sums(shared)]
        everyone = tuple(range(self.pipeline.num_stages))
        return [*calls, StageCall("broadcast", self.loss_bytes, everyone, "sync", self.graph.loss.name)]

    def pass_collectives(self, one: Pass) -> list[Collective]:
        """Collectives of one pass inside its stage."""
        calls, last = self._collectives[one.chunk], self.strategy.num_micro - 1
        each_use = self.strategy.gather == "use"
        if one.kind == FORWARD:
            return calls.forward(each_use or one.micro == 0)
        if one.kind == BACKWARD:
            ends = one.micro == last
            returns = each_use or (ends and not gradients_return_at_end(self.strategy))
            return calls.backward(returns, ends and not self.pipeline.schedule.splits_backward)
        return []

    def sums(self, shared: SharedGradients) -> list[Collective | StageCall]:
        """Collectives that complete the gradients of shared parameters."""
        total = sum(local_gradient_bytes(self.graph, self.strategy, name) for name in shared.names)
        calls: list[Collective | StageCall] = []
        if shared.axes:
            calls.append(Collective("all_reduce", total, shared.axes, "sync", shared.names[0]))
        if len(shared.stages) > 1:
            calls.append(StageCall("all_reduce", total, shared.stages, "sync", shared.names[0]))
        return calls

    def _messages(self, one: Pass, arriving: bool) -> list[StageCall]:
        """P2P messages of a pass: values from the previous chunk or to the next; gradients in reverse."""
        forward = one.kind == FORWARD
        if not forward and one.kind != BACKWARD:
            return []
        upper = one.chunk - 1 if forward == arriving else one.chunk
        if not 0 <= upper < self.pipeline.num_chunks - 1:
            return []
        ends = self.pipeline.stage_of(upper), self.pipeline.stage_of(upper + 1)
        return [
            StageCall("p2p", num_bytes, ends if forward else ends[::-1], one.kind, ref.name)
            for ref, num_bytes, gradient in self.sent_values(upper)
            if forward or gradient
        ]

    @property
    def loss_bytes(self) -> int:
        """Bytes of the losses of all microbatches of a step."""
        return self.strategy.num_micro * self.graph.meta(self.graph.loss).num_bytes

    @cached_property
    def _collectives(self) -> tuple[StepCollectives, ...]:
        return tuple(StepCollectives(chunk.graph, self.strategy, chunk.flow) for chunk in self.chunks)


def local_value_bytes(graph: LogicalGraph, strategy: Strategy, ref: Ref) -> int:
    """Bytes of one rank's shard of a value, in the layout in which its op produces it."""
    return graph.meta(ref).num_bytes // split_factor(output_layout(strategy, ref), strategy.mesh)


def _shared(graph: LogicalGraph, strategy: Strategy, readers: dict[str, list[int]]) -> tuple[SharedGradients, ...]:
    """Group parameters with equal axes, stages and dtype into messages of up to ``bucket_bytes``."""
    pipeline: Pipeline | None = strategy.pipeline
    assert pipeline is not None
    stages = {name: tuple(sorted({pipeline.stage_of(chunk) for chunk in found})) for name, found in readers.items()}
    axes = {name: gradient_reduction_axes(strategy.parameters[name]) for name in readers}
    waiting = [
        leaf for leaf in graph.trained if leaf.name in readers and (axes[leaf.name] or len(stages[leaf.name]) > 1)
    ]
    groups = batch_by_kind(
        waiting,
        lambda leaf: (axes[leaf.name], stages[leaf.name], leaf.meta.dtype),
        lambda leaf: local_gradient_bytes(graph, strategy, leaf.name),
        strategy.bucket_bytes,
    )
    return tuple(
        SharedGradients(tuple(leaf.name for leaf in members), axes[members[0].name], stages[members[0].name])
        for _, members in groups
    )
