"""The chunks of a pipelined strategy as programs, and everything that a rank of a stage sends in a training step.

A chunk's own collectives are those of ``costmodel.collectives``. Between them stand the messages from stage to stage: what
a pass waits for is listed before it, what it sends behind it. After the last pass come gradients that waited, sums of
parameters that several stages keep, and the losses, which the last stage tells the others.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from autosbp.costmodel.collectives import Collective, StepCollectives
from autosbp.costmodel.pipeline_passes import BACKWARD, FORWARD, Pass, stage_passes
from autosbp.errors import InputError
from autosbp.graph.chunks import ChunkGraph, cut_graph
from autosbp.graph.hashed import Hashed
from autosbp.graph.ir import LogicalGraph, Parameter, Ref
from autosbp.pipeline import Pipeline
from autosbp.plan import Strategy
from autosbp.sbp.batching import batched
from autosbp.sbp.boxing import split_factor
from autosbp.sbp.buckets import local_bytes, synchronised_axes
from autosbp.sbp.deferral import may_defer, returns_late
from autosbp.sbp.parameters import ParameterFlow, parameter_flow
from autosbp.sbp.program import made_layout
from autosbp.sbp.recompute import check_recompute


@dataclass(frozen=True, slots=True)
class StageCall:
    """What a rank shares with the ranks in its place of other ``stages``: a ``p2p`` message from the first of two to the
    second, an ``all_reduce``, or a ``broadcast``. Fields as of ``Collective``."""

    kind: str
    num_bytes: int
    stages: tuple[int, ...]
    phase: str
    cause: str


@dataclass(frozen=True, slots=True)
class SharedGradients:
    """Gradients of parameters that several chunks read. They are reduced over ``axes`` in each stage, where there are
    any, and then summed over ``stages``, where these are several; once a step, in one message."""

    names: tuple[str, ...]
    axes: tuple[int, ...]
    stages: tuple[int, ...]


@dataclass(frozen=True)
class Chunk:
    """One chunk with its flow. ``graph`` is bound at the microbatch; ``shared`` are parameters that other chunks read, too."""

    index: int
    graph: ChunkGraph
    strategy: Strategy
    shared: frozenset[str]

    @cached_property
    def flow(self) -> ParameterFlow:
        return parameter_flow(self.graph, self.strategy, self.shared)


class Stages:
    """A pipelined strategy, cut.

    Args:
        graph: the whole one, bound at the strategy's microbatch.
        strategy: has a pipeline.

    Raises:
        InputError: for a pipeline that does not fit the graph, and as ``program_items`` does.
    """

    def __init__(self, graph: LogicalGraph, strategy: Strategy) -> None:
        if strategy.pipeline is None:
            raise InputError("strategy.pipeline", None, "a pipeline is expected")
        self.graph, self.strategy, self.pipeline = graph, strategy, strategy.pipeline
        self.pipeline.check(strategy.num_micro)
        # Of ``costmodel.alike``: by what each chunk is told apart from others, and these as one object each.
        self.kinds: dict[int, Hashable] = {}
        self.known_kinds: dict[Hashable, Hashable] = {}
        graphs = cut_graph(graph, self.pipeline.cuts)
        check_recompute(graph, strategy, graphs)
        readers: dict[str, list[int]] = {}
        for index, part in enumerate(graphs):
            for leaf in part.parameters:
                readers.setdefault(leaf.name, []).append(index)
        shared = frozenset(name for name, chunks in readers.items() if len(chunks) > 1)
        self.chunks = tuple(Chunk(index, part, strategy, shared) for index, part in enumerate(graphs))
        # One that no gradient reaches keeps none, as on one device.
        reading = {index for name in shared for index in readers[name]}
        reached = shared & {name for index in reading for name in self.chunks[index].flow.sources}
        self.shared = _shared(graph, strategy, {name: readers[name] for name in readers if name in reached})

    @cached_property
    def key(self) -> Hashable:
        """Equal for strategies of one graph in which chunks that are alike (``costmodel.alike``) take equally long and equally
        much, but for what their schedules make of it."""
        strategy = self.strategy
        paths = Hashed(frozenset(strategy.paths.items()))
        return strategy.mesh, paths, strategy.num_micro, strategy.gather, strategy.bucket_bytes, strategy.offload

    @cached_property
    def may_defer(self) -> bool:
        """Whether gradients of weights may come in passes of their own."""
        return may_defer(self.graph, self.strategy)

    def of(self, stage: int) -> tuple[Chunk, ...]:
        """The chunks of one stage."""
        return tuple(self.chunks[index] for index in self.pipeline.chunks_of(stage))

    def parameters_of(self, stage: int) -> tuple[str, ...]:
        """What a stage stores, in the graph's order."""
        return tuple(leaf.name for leaf in self._stored[stage])

    def trained_of(self, stage: int) -> tuple[Parameter, ...]:
        """Of what a stage stores that which is trained, in the graph's order."""
        return tuple(leaf for leaf in self._stored[stage] if leaf.name in self._trained)

    @cached_property
    def _trained(self) -> frozenset[str]:
        return frozenset(leaf.name for leaf in self.graph.trained)

    @cached_property
    def _stored(self) -> tuple[tuple[Parameter, ...], ...]:
        """What each stage stores, all in one go: a model may have as many parameters as it likes, and as many stages."""
        keepers: dict[str, set[int]] = {}
        for chunk in self.chunks:
            for leaf in chunk.graph.parameters:
                keepers.setdefault(leaf.name, set()).add(self.pipeline.stage_of(chunk.index))
        found: list[list[Parameter]] = [[] for _ in range(self.pipeline.num_stages)]
        for leaf in self.graph.parameters:
            for stage in keepers.get(leaf.name, ()):
                found[stage].append(leaf)
        return tuple(map(tuple, found))

    def boundary(self, chunk: int) -> list[tuple[Ref, int, bool]]:
        """What chunk ``chunk`` sends on: each value, one rank's bytes of it, and whether a gradient comes back."""
        return [
            (ref, sent_bytes(self.graph, self.strategy, ref), self.graph.has_gradient(ref))
            for ref in self.chunks[chunk].graph.results
        ]

    def calls(self, stage: int) -> list[Collective | StageCall]:
        """Everything that a rank of a stage takes part in during one step, in order."""
        return [call for calls in self._calls(stage) for call in calls]

    def _calls(self, stage: int) -> Iterator[Iterable[Collective | StageCall]]:
        for one in stage_passes(self.pipeline, stage, self.strategy.num_micro):
            yield self._messages(one, arriving=True)
            yield self.of_pass(one)
            yield self._messages(one, arriving=False)
        for chunk in self.of(stage):
            late = self._collectives[chunk.index]
            if returns_late(self.strategy):
                yield late.returns()
            yield late.reductions() if self.pipeline.schedule.splits_backward else late.at_end()
        yield self.ending(stage)

    def ending(self, stage: int) -> list[Collective | StageCall]:
        """What comes last in a step: sums of shared parameters, and the losses."""
        calls = [call for shared in self.shared if stage in shared.stages for call in self.sums(shared)]
        everyone = tuple(range(self.pipeline.num_stages))
        return [*calls, StageCall("broadcast", self.loss_bytes, everyone, "sync", self.graph.loss.name)]

    def of_pass(self, one: Pass) -> list[Collective]:
        """What a pass does inside its stage."""
        calls, last = self._collectives[one.chunk], self.strategy.num_micro - 1
        each_use = self.strategy.gather == "use"
        if one.kind == FORWARD:
            return calls.forward(each_use or one.micro == 0)
        if one.kind == BACKWARD:
            ends = one.micro == last
            returns = each_use or (ends and not returns_late(self.strategy))
            return calls.backward(returns, ends and not self.pipeline.schedule.splits_backward)
        return []

    def sums(self, shared: SharedGradients) -> list[Collective | StageCall]:
        """What makes the gradients of shared parameters whole."""
        total = sum(local_bytes(self.graph, self.strategy, name) for name in shared.names)
        calls: list[Collective | StageCall] = []
        if shared.axes:
            calls.append(Collective("all_reduce", total, shared.axes, "sync", shared.names[0]))
        if len(shared.stages) > 1:
            calls.append(StageCall("all_reduce", total, shared.stages, "sync", shared.names[0]))
        return calls

    def _messages(self, one: Pass, arriving: bool) -> list[StageCall]:
        """Forward, values come from the chunk before and go to the one behind; backward, gradients the other way."""
        forward = one.kind == FORWARD
        if not forward and one.kind != BACKWARD:
            return []
        upper = one.chunk - 1 if forward == arriving else one.chunk
        if not 0 <= upper < self.pipeline.num_chunks - 1:
            return []
        ends = self.pipeline.stage_of(upper), self.pipeline.stage_of(upper + 1)
        return [
            StageCall("p2p", num_bytes, ends if forward else ends[::-1], one.kind, ref.name)
            for ref, num_bytes, gradient in self.boundary(upper)
            if forward or gradient
        ]

    @property
    def loss_bytes(self) -> int:
        """The losses of a step's microbatches."""
        return self.strategy.num_micro * self.graph.meta(self.graph.loss).num_bytes

    @cached_property
    def _collectives(self) -> tuple[StepCollectives, ...]:
        return tuple(StepCollectives(chunk.graph, self.strategy, chunk.flow) for chunk in self.chunks)


def sent_bytes(graph: LogicalGraph, strategy: Strategy, ref: Ref) -> int:
    """One rank's part of a value, as its op leaves it."""
    return graph.meta(ref).num_bytes // split_factor(made_layout(strategy, ref), strategy.mesh)


def _shared(graph: LogicalGraph, strategy: Strategy, readers: dict[str, list[int]]) -> tuple[SharedGradients, ...]:
    """Parameters with the same axes, stages and dtype go together, in messages of up to ``bucket_bytes``."""
    pipeline: Pipeline | None = strategy.pipeline
    assert pipeline is not None
    stages = {name: tuple(sorted({pipeline.stage_of(chunk) for chunk in found})) for name, found in readers.items()}
    axes = {name: synchronised_axes(strategy.parameters[name]) for name in readers}
    waiting = [
        leaf for leaf in graph.trained if leaf.name in readers and (axes[leaf.name] or len(stages[leaf.name]) > 1)
    ]
    groups = batched(
        waiting,
        lambda leaf: (axes[leaf.name], stages[leaf.name], leaf.meta.dtype),
        lambda leaf: local_bytes(graph, strategy, leaf.name),
        strategy.bucket_bytes,
    )
    return tuple(
        SharedGradients(tuple(leaf.name for leaf in members), axes[members[0].name], stages[members[0].name])
        for _, members in groups
    )
