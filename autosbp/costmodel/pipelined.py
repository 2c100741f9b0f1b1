"""The cost of a strategy with a pipeline: each chunk's events (``costmodel.timeline``), put into stages and passes.

Passes are simulated in the order of the schedule (``costmodel.pipeline``), and messages between stages wait for each other
on the links that they share. What happens once a step (gathers of parameters, reductions of gradients, sums of shared
parameters, the losses, the optimizer) is added behind a stage's last pass. Times are those of the stage that is done
last; traffic and memory, those of the stage that has most. Where a cluster has groups of unlike devices, each stage has
the times of its own, and memory is that of the stage that is nearest to its devices' limit.

Where ranks share hardware (``costmodel.sharing``), passes go faster while other stages wait; those of ``message_driven``, which
nothing here runs, are as calibrated.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod

import numpy as np

from autosbp.costmodel.alike import KnownChunks, chunk_key
from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.collectives import Collective
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.links import Links
from autosbp.costmodel.memory.stage import memory_runs, stage_memory
from autosbp.costmodel.network import beta_factor
from autosbp.costmodel.offload import optimizer_s
from autosbp.costmodel.pipeline import Chunk as Passes
from autosbp.costmodel.pipeline import Span, pass_spans, pipeline_time
from autosbp.costmodel.pipeline_passes import BACKWARD, FORWARD, WEIGHTS
from autosbp.costmodel.shared_pipeline import Parts, Shared, shared_passes
from autosbp.costmodel.sharing import Paces
from autosbp.costmodel.simulate import Elapsed, Part, alone_parts, elapsed
from autosbp.costmodel.stage_models import StageModels, stage_limits
from autosbp.costmodel.stages import Chunk, StageCall, Stages
from autosbp.costmodel.timeline import LOSS, Timeline
from autosbp.costmodel.timeline_event import GRADIENT_SYNC, PIPELINE, Event
from autosbp.errors import InputError
from autosbp.graph.ir import DTYPE_BYTES, LogicalGraph
from autosbp.handed import handed_over
from autosbp.plan import Costs, StageCosts, Strategy
from autosbp.sbp.boxing import split_factor
from autosbp.sbp.deferral import deferring
from autosbp.sbp.placed_mesh import placed_mesh

WEIGHTS_SHARE = 0.5
"""Of the backward of a product, its weights' part: as many FLOPs as its input's."""


@handed_over
@dataclass(frozen=True, slots=True)
class _ChunkCost:
    """Of a chunk: each pass of a microbatch, ``weights_s`` of which a schedule may put off; what comes on top ``once`` a step;
    the bytes that its ranks send inside their stage in a step; and the ``parts`` of its passes where stages share hardware."""

    forward: Elapsed
    backward: Elapsed
    weights_s: float
    once: Elapsed
    inside_bytes: float
    parts: Mapping[str, Parts]

    @property
    def passes(self) -> Elapsed:
        return self.forward.plus(self.backward)


def evaluate_pipelined(
    graph: LogicalGraph,
    strategy: Strategy,
    boxing: BoxingModel,
    compute: ComputeModel,
    known: KnownChunks | None = None,
) -> Costs:
    """Predicted costs of one training step on one device; arguments as of ``evaluate``.

    Raises:
        InputError: for a pipeline that does not fit the graph, or more devices than the cluster has.
    """
    return _Pipelined(graph, strategy, boxing, compute, known, with_memory=True).costs()


def pipelined_step_s(
    graph: LogicalGraph,
    strategy: Strategy,
    boxing: BoxingModel,
    compute: ComputeModel,
    known: KnownChunks | None = None,
) -> float:
    """``step_time_s`` alone of ``evaluate_pipelined``, which takes a fraction of the time without memory."""
    return max(_Pipelined(graph, strategy, boxing, compute, known).ends())


def pipeline_spans(graph: LogicalGraph, strategy: Strategy, boxing: BoxingModel, compute: ComputeModel) -> list[Span]:
    """When every pass of a simulated step runs, without what comes once a step behind a stage's last one; arguments and
    errors as of ``evaluate_pipelined``."""
    found = _Pipelined(graph, strategy, boxing, compute)
    shared = found.shared()
    return shared.spans if shared else pass_spans(found.together(), found.stages.pipeline, strategy.num_micro)


class _Pipelined:
    def __init__(
        self,
        graph: LogicalGraph,
        strategy: Strategy,
        boxing: BoxingModel,
        compute: ComputeModel,
        known: KnownChunks | None = None,
        *,
        with_memory: bool = False,
    ) -> None:
        self.graph, self.strategy, self.boxing, self.compute = graph, strategy, boxing, compute
        self.known = KnownChunks() if known is None else known
        self.network = boxing.network
        self.counts = tuple(level.count for level in self.network.cluster.levels)
        if strategy.num_devices > prod(self.counts):
            raise InputError(
                "strategy.pipeline", strategy.num_devices, f"at most {prod(self.counts)} devices are there"
            )
        self.stages = Stages(graph, strategy)
        stage_of = self.stages.pipeline.stage_of
        self.models = StageModels(boxing, compute, self.stages.pipeline.num_stages)
        self.keys = [
            (chunk_key(self.stages, chunk), self.models.groups[stage_of(chunk.index)]) for chunk in self.stages.chunks
        ]
        everywhere = ("seconds", self.stages.pipeline.schedule.splits_backward, self.stages.key)
        seconds: dict[Hashable, Callable[[], _ChunkCost]] = {
            (*everywhere, *key): partial(self._chunk, chunk)
            for key, chunk in zip(self.keys, self.stages.chunks, strict=True)
        }
        kind = boxing.device.kind
        self.known.prepare({**seconds, **(memory_runs(self.stages, self.stages.chunks, kind) if with_memory else {})})
        self.chunks = [self.known.of((*everywhere, *key), seconds[*everywhere, *key]) for key in self.keys]
        cuts = range(len(self.chunks) - 1)
        self._stage_calls_s: dict[StageCall, float] = {}
        self.ahead_s = [*(self._messages_s(at, backward=False) for at in cuts), 0.0]
        self.back_s = [0.0, *(self._messages_s(at, backward=True) for at in cuts)]

    def ends(self) -> list[float]:
        """When each stage is done with all of a step."""
        ends = enumerate(self._passes_ends())
        return [end + self._once(stage).seconds + self._optimizer_s(stage) for stage, end in ends]

    def costs(self) -> Costs:
        stages = range(self.stages.pipeline.num_stages)
        ends = self.ends()
        last = max(stages, key=ends.__getitem__)
        spent, optimizer_s = self._passes(last).plus(self._once(last)), self._optimizer_s(last)
        sent_s = self._sends_s(last)
        left_s = ends[last] - spent.seconds - optimizer_s
        # What a stage waits for is its own messages first, then other stages.
        exposed_s = min(sent_s, max(0.0, left_s))
        if left_s < 0.0:  # passes that went faster while others waited
            spent = replace(spent, compute_s=spent.compute_s + left_s)
        kind = self.boxing.device.kind
        memories = [stage_memory(self.stages, stage, device=kind, known=self.known) for stage in stages]
        bytes_of = [sum(parts.values()) for parts in memories]
        limits = stage_limits(self.network.cluster, self.strategy.mesh.size, len(stages))
        fullest = max(stages, key=lambda stage: bytes_of[stage] - limits[stage])
        memory = memories[fullest]
        return Costs(
            step_time_s=ends[last],
            compute_s=spent.compute_s,
            exposed={**spent.exposed, PIPELINE: exposed_s},
            hidden_comm_s=spent.hidden_s + sent_s - exposed_s,
            bubble_s=max(0.0, left_s - exposed_s),
            optimizer_s=optimizer_s,
            comm_bytes_per_device=round(max(map(self._traffic, stages))),
            memory_bytes_per_device=bytes_of[fullest],
            memory=memory,
            stages=tuple(map(self._stage_costs, stages, bytes_of, limits)) if self.network.cluster.groups else (),
        )

    def _stage_costs(self, stage: int, memory_bytes: int, limit: int) -> StageCosts:
        groups = [self.network.cluster.groups[at].name for at in self.models.groups[stage]]
        busy_s = self._passes(stage).seconds + self._sends_s(stage)
        return StageCosts("+".join(groups), busy_s, memory_bytes, limit)

    def together(self) -> list[Passes]:
        """The passes of each chunk."""
        return [
            Passes(cost.forward.seconds, cost.backward.seconds - cost.weights_s, cost.weights_s, ahead_s, back_s)
            for cost, ahead_s, back_s in zip(self.chunks, self.ahead_s, self.back_s, strict=True)
        ]

    def shared(self) -> Shared | None:
        """The passes of ``together``, where stages share hardware; None where none do."""
        sharing, pipeline = self.compute.sharing, self.stages.pipeline
        if sharing is None or pipeline.schedule.is_message_driven:
            return None
        size = self.strategy.mesh.size
        paces = Paces(sharing, pipeline.num_stages, size, self.compute.overlap)
        parts = [cost.parts for cost in self.chunks]
        cuts = range(len(self.chunks) - 1)
        ahead_s = [*(self._messages_s(at, False, at_once=True) for at in cuts), 0.0]
        back_s = [0.0, *(self._messages_s(at, True, at_once=True) for at in cuts)]
        chunks = [replace(one, send_s=ahead_s[at], return_s=back_s[at]) for at, one in enumerate(self.together())]
        return shared_passes(chunks, parts, pipeline, self.strategy.num_micro, paces, Links(self.counts, size))

    def _passes_ends(self) -> Sequence[float]:
        """When each stage is done with its passes."""
        shared = self.shared()
        if shared:
            return shared.ends
        pipeline = self.stages.pipeline
        count, lag = self.strategy.num_micro, pipeline.weights_lag
        return pipeline_time(self.together(), pipeline.num_stages, count, 0.0, pipeline.schedule, lag).ends

    def _passes(self, stage: int) -> Elapsed:
        """What a stage does in all its passes."""
        spent = Elapsed()
        for at in self.stages.pipeline.chunks_of(stage):
            spent = spent.plus(self.chunks[at].passes, self.strategy.num_micro)
        return spent

    def _sends_s(self, stage: int) -> float:
        """All messages of a stage to others."""
        own = self.stages.pipeline.chunks_of(stage)
        return self.strategy.num_micro * sum(self.ahead_s[at] + self.back_s[at] for at in own)

    def _chunk(self, chunk: Chunk) -> _ChunkCost:
        strategy = self.strategy
        boxing, compute = self.models[self.stages.pipeline.stage_of(chunk.index)]
        timeline = Timeline(chunk.graph, strategy, boxing, compute, chunk.flow)
        each_use = strategy.gather == "use"
        first, forward = list(timeline.forward_pass(True)), list(timeline.forward_pass(each_use))
        backward = list(timeline.backward_pass(False))
        if self.stages.pipeline.schedule.splits_backward:
            last = [*backward, *timeline.behind_passes()]
        else:
            last = list(timeline.backward_pass(True))
        later_s = self._weights_s(chunk, backward)
        sent = [self._bytes(events) for events in (forward, backward, first, last)]
        # The loss's sum is waited for when all passes are over, long after its own.
        first, forward = ([event for event in events if event.key != LOSS] for events in (first, forward))
        spent = [elapsed(events, compute.overlap) for events in (forward, backward, first, last)]
        return _ChunkCost(
            spent[0],
            spent[1],
            later_s,
            spent[2].plus(spent[3]).plus(spent[0], -1.0).plus(spent[1], -1.0).rounded(),
            (strategy.num_micro - 1) * (sent[0] + sent[1]) + sent[2] + sent[3],
            self._parts(forward, backward, later_s) if compute.sharing else {},
        )

    def _parts(self, forward: Sequence[Event], backward: Sequence[Event], later_s: float) -> Mapping[str, Parts]:
        """What a backward pass leaves for later is taken evenly from all that it computes."""
        overlap = self.compute.overlap
        ahead, back = alone_parts(forward, overlap), alone_parts(backward, overlap)
        computed_s = sum(part.seconds for part in back if part.computes)
        left = 1.0 - min(later_s / computed_s, 1.0) if computed_s else 1.0
        rest = [part._replace(seconds=left * part.seconds) if part.computes else part for part in back]
        return {FORWARD: tuple(ahead), BACKWARD: tuple(rest), WEIGHTS: (Part(later_s, True),)}

    def _weights_s(self, chunk: Chunk, backward: Iterable[Event]) -> float:
        """What the backward of a microbatch leaves for later."""
        if not self.stages.pipeline.schedule.splits_backward:
            return 0.0
        later = deferring(chunk.graph, self.strategy, chunk.flow)
        return WEIGHTS_SHARE * sum(
            event.duration_s
            for event in backward
            if event.phase == "backward" and event.name in later and "op" in event.details
        )

    def _bytes(self, events: Iterable[Event]) -> float:
        calls = [event.details for event in events if event.category == "comm"]
        group_size = self.strategy.mesh.group_size
        return float(sum(beta_factor(call["kind"], group_size(call["axes"])) * call["num_bytes"] for call in calls))

    def _messages_s(self, upper: int, backward: bool, at_once: bool = False) -> float:
        """What crosses the cut behind a chunk, of one microbatch, from all ranks of its stage; ``at_once`` as
        ``LinkModel.even_exchange_s`` has it."""
        size, pipeline = self.strategy.mesh.size, self.stages.pipeline
        source, target = pipeline.stage_of(upper + backward), pipeline.stage_of(upper + (not backward))
        ranks = np.arange(size)
        sizes = [num_bytes for _, num_bytes, gradient in self.stages.boundary(upper) if gradient or not backward]
        links = self.models.between(source, target)
        ends = source * size + ranks, target * size + ranks
        return sum(links.even_exchange_s(*ends, each, at_once) for each in sizes)

    def _once(self, stage: int) -> Elapsed:
        """What a stage does once a step on top of its passes, but for the optimizer."""
        spent = Elapsed(exposed={GRADIENT_SYNC: self._ending_s(stage)})
        for at in self.stages.pipeline.chunks_of(stage):
            spent = spent.plus(self.chunks[at].once)
        return spent

    def _ending_s(self, stage: int) -> float:
        """Sums of shared parameters, and the losses."""
        return sum(self._call_s(call, stage) for call in self.stages.ending(stage))

    def _call_s(self, call: Collective | StageCall, stage: int) -> float:
        if not isinstance(call, StageCall):
            return self.models[stage][0].network.time_s(
                call.kind, call.num_bytes, self.strategy.mesh.group_shape(call.axes)
            )
        if call not in self._stage_calls_s:
            devices = [stage * self.strategy.mesh.size for stage in call.stages]
            shape = placed_mesh(devices, (len(devices),), self.counts).group_shape((0,))
            self._stage_calls_s[call] = self.network.time_s(call.kind, call.num_bytes, shape)
        return self._stage_calls_s[call]

    def _traffic(self, stage: int) -> float:
        """Bytes that a rank sends in a step."""
        sent = 0.0
        for at in self.stages.pipeline.chunks_of(stage):
            ahead = sum(size for _, size, _ in self.stages.boundary(at))
            back = sum(size for _, size, gradient in (self.stages.boundary(at - 1) if at else ()) if gradient)
            sent += self.chunks[at].inside_bytes + self.strategy.num_micro * (ahead + back)
        for call in self.stages.ending(stage):
            ranks = len(call.stages) if isinstance(call, StageCall) else self.strategy.mesh.group_size(call.axes)
            sent += beta_factor(call.kind, ranks) * call.num_bytes
        return sent

    def _optimizer_s(self, stage: int) -> float:
        mesh, strategy = self.strategy.mesh, self.strategy
        sizes: dict[int, list[float]] = {}
        for leaf in self.stages.trained_of(stage):
            local = leaf.meta.num_bytes / split_factor(strategy.parameters[leaf.name], mesh)
            sizes.setdefault(DTYPE_BYTES[leaf.meta.dtype], []).append(local)
        boxing, compute = self.models[stage]
        cluster, name, offload = boxing.network.cluster, strategy.optimizer, strategy.offload
        return sum(
            float(optimizer_s(compute, cluster, name, np.array(local), width, offload=offload).sum())
            for width, local in sizes.items()
        )
