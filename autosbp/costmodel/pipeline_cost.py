"""Cost of a strategy with a pipeline: each chunk's events (``costmodel.step_events``), arranged in stages and passes.

Passes are simulated in the order of the schedule (``costmodel.pipeline_timing``); messages between stages queue on the
links that they share. Work that happens once a step (parameter gathers, gradient reductions, sums of shared parameters,
the losses, the optimizer) is added after a stage's last pass. Times are those of the stage that finishes last; traffic
and memory are those of the stage with the most. On a cluster with groups of different devices, each stage has its own
times, and memory is that of the stage closest to its devices' limit.

If ranks share hardware (``costmodel.compute_contention``), passes run faster while other stages wait;
``message_driven``, which has no runtime, keeps calibrated times.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod

import numpy as np

from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.chunk_cache import ChunkCostCache, chunk_key
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.compute_contention import StageSpeeds
from autosbp.costmodel.contended_pipeline_timing import Parts, SharedTimeline, simulate_shared_pipeline
from autosbp.costmodel.link_contention import StageLinks
from autosbp.costmodel.memory.stage_memory import memory_runs, stage_memory
from autosbp.costmodel.network import beta_factor
from autosbp.costmodel.offload import optimizer_s
from autosbp.costmodel.per_stage_models import StageModels, stage_limits
from autosbp.costmodel.pipeline_program import PipelineChunk, PipelineProgram, StageCall
from autosbp.costmodel.pipeline_timing import ChunkTimes as Passes
from autosbp.costmodel.pipeline_timing import PassSpan, pass_spans, pipeline_time
from autosbp.costmodel.step_collectives import Collective
from autosbp.costmodel.step_event import GRADIENT_SYNC, PIPELINE, Event
from autosbp.costmodel.step_events import LOSS, Timeline
from autosbp.costmodel.step_simulator import ProgramPart, StepSeconds, simulate_activity, simulate_parts
from autosbp.errors import InputError
from autosbp.graph.ir import LogicalGraph, TensorMeta
from autosbp.plan.plan import Costs, StageCosts, Strategy
from autosbp.program.deferred_wgrad import deferred_linear_ops
from autosbp.program.placed_mesh import placed_mesh
from autosbp.sbp.boxing import split_factor
from autosbp.schedules.passes import BACKWARD, FORWARD, WGRAD
from autosbp.utils.serialization import serializable

WGRAD_SHARE = 0.5
"""Share of the weight gradient in the backward of a matmul: as many FLOPs as the input gradient."""


@serializable
@dataclass(frozen=True, slots=True)
class _ChunkCost:
    """Costs of one chunk.

    Args:
        forward, backward: the passes of one microbatch.
        weights_s: part of backward that a schedule may defer.
        once: extra work once a step.
        inside_bytes: bytes that a rank sends inside its stage in a step.
        parts: parts of its passes, if stages share hardware.
    """

    forward: StepSeconds
    backward: StepSeconds
    wgrad_s: float
    once: StepSeconds
    intra_stage_bytes: float
    parts: Mapping[str, Parts]

    @property
    def passes(self) -> StepSeconds:
        return self.forward.plus(self.backward)


def evaluate_pipelined(
    graph: LogicalGraph,
    strategy: Strategy,
    boxing: BoxingModel,
    compute: ComputeModel,
    known: ChunkCostCache | None = None,
) -> Costs:
    """Predicted costs of one training step on one device; arguments as in ``costmodel.strategy_cost.evaluate``.

    Raises:
        InputError: for a pipeline that does not fit the graph, or more devices than the cluster has.
    """
    return _Pipelined(graph, strategy, boxing, compute, known, with_memory=True).costs()


def pipelined_step_s(
    graph: LogicalGraph,
    strategy: Strategy,
    boxing: BoxingModel,
    compute: ComputeModel,
    known: ChunkCostCache | None = None,
) -> float:
    """``step_time_s`` of ``evaluate_pipelined``, without memory, in a fraction of the time."""
    return max(_Pipelined(graph, strategy, boxing, compute, known).ends())


def pipeline_spans(
    graph: LogicalGraph, strategy: Strategy, boxing: BoxingModel, compute: ComputeModel
) -> list[PassSpan]:
    """Spans of all passes of a simulated step, without the once-a-step work after a stage's last pass.

    Arguments and errors as in ``evaluate_pipelined``.
    """
    found = _Pipelined(graph, strategy, boxing, compute)
    shared = found.shared()
    return shared.spans if shared else pass_spans(found.chunk_pass_times(), found.stages.pipeline, strategy.num_micro)


class _Pipelined:
    def __init__(
        self,
        graph: LogicalGraph,
        strategy: Strategy,
        boxing: BoxingModel,
        compute: ComputeModel,
        known: ChunkCostCache | None = None,
        *,
        with_memory: bool = False,
    ) -> None:
        self.graph, self.strategy, self.boxing, self.compute = graph, strategy, boxing, compute
        self.known = ChunkCostCache() if known is None else known
        self.network = boxing.network
        self.counts = tuple(level.count for level in self.network.cluster.levels)
        if strategy.num_devices > prod(self.counts):
            raise InputError("strategy.pipeline", strategy.num_devices, f"the cluster has {prod(self.counts)} devices")
        self.stages = PipelineProgram(graph, strategy)
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
        self.activation_send_s = [*(self._messages_s(at, backward=False) for at in cuts), 0.0]
        self.gradient_send_s = [0.0, *(self._messages_s(at, backward=True) for at in cuts)]

    def ends(self) -> list[float]:
        """Finish time of each stage, all work of a step included."""
        ends = enumerate(self._passes_ends())
        return [end + self._once_per_step(stage).seconds + self._optimizer_s(stage) for stage, end in ends]

    def costs(self) -> Costs:
        stages = range(self.stages.pipeline.num_stages)
        ends = self.ends()
        last = max(stages, key=ends.__getitem__)
        spent, optimizer_s = self._passes(last).plus(self._once_per_step(last)), self._optimizer_s(last)
        sent_s = self._sends_s(last)
        left_s = ends[last] - spent.seconds - optimizer_s
        # A stage's wait counts first as its own messages, then as waiting for other stages.
        exposed_s = min(sent_s, max(0.0, left_s))
        if left_s < 0.0:  # passes that ran faster while others waited
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

    def chunk_pass_times(self) -> list[Passes]:
        """Pass times of each chunk."""
        return [
            Passes(cost.forward.seconds, cost.backward.seconds - cost.wgrad_s, cost.wgrad_s, ahead_s, back_s)
            for cost, ahead_s, back_s in zip(self.chunks, self.activation_send_s, self.gradient_send_s, strict=True)
        ]

    def shared(self) -> SharedTimeline | None:
        """Timeline of the passes if stages share hardware; None if they do not."""
        sharing, pipeline = self.compute.sharing, self.stages.pipeline
        if sharing is None or pipeline.schedule.is_message_driven:
            return None
        size = self.strategy.mesh.size
        paces = StageSpeeds(sharing, pipeline.num_stages, size, self.compute.overlap)
        parts = [cost.parts for cost in self.chunks]
        cuts = range(len(self.chunks) - 1)
        ahead_s = [*(self._messages_s(at, False, at_once=True) for at in cuts), 0.0]
        back_s = [0.0, *(self._messages_s(at, True, at_once=True) for at in cuts)]
        chunks = [
            replace(one, send_s=ahead_s[at], gradient_send_s=back_s[at])
            for at, one in enumerate(self.chunk_pass_times())
        ]
        return simulate_shared_pipeline(
            chunks, parts, pipeline, self.strategy.num_micro, paces, StageLinks(self.counts, size)
        )

    def _passes_ends(self) -> Sequence[float]:
        """Time at which each stage finishes its passes."""
        shared = self.shared()
        if shared:
            return shared.ends
        pipeline = self.stages.pipeline
        count, lag = self.strategy.num_micro, pipeline.weights_lag
        return pipeline_time(self.chunk_pass_times(), pipeline.num_stages, count, 0.0, pipeline.schedule, lag).ends

    def _passes(self, stage: int) -> StepSeconds:
        """Activity of a stage in all its passes."""
        spent = StepSeconds()
        for at in self.stages.pipeline.chunks_of(stage):
            spent = spent.plus(self.chunks[at].passes, self.strategy.num_micro)
        return spent

    def _sends_s(self, stage: int) -> float:
        """Seconds of all messages of a stage to other stages."""
        own = self.stages.pipeline.chunks_of(stage)
        return self.strategy.num_micro * sum(self.activation_send_s[at] + self.gradient_send_s[at] for at in own)

    def _chunk(self, chunk: PipelineChunk) -> _ChunkCost:
        strategy = self.strategy
        boxing, compute = self.models[self.stages.pipeline.stage_of(chunk.index)]
        timeline = Timeline(chunk.graph, strategy, boxing, compute, chunk.flow)
        each_use = strategy.gather == "use"
        first, forward = list(timeline.forward_pass(True)), list(timeline.forward_pass(each_use))
        backward = list(timeline.backward_pass(False))
        if self.stages.pipeline.schedule.splits_backward:
            last = [*backward, *timeline.gradient_events_after_passes()]
        else:
            last = list(timeline.backward_pass(True))
        last += timeline.served_updates()
        later_s = self._weights_s(chunk, backward)
        sent = [self._bytes(events) for events in (forward, backward, first, last)]
        # The loss's sum is waited for after all passes, when it has long finished.
        first, forward = ([event for event in events if event.key != LOSS] for events in (first, forward))
        spent = [simulate_activity(events, compute.overlap) for events in (forward, backward, first, last)]
        return _ChunkCost(
            spent[0],
            spent[1],
            later_s,
            spent[2].plus(spent[3]).plus(spent[0], -1.0).plus(spent[1], -1.0).rounded(),
            (strategy.num_micro - 1) * (sent[0] + sent[1]) + sent[2] + sent[3],
            self._parts(forward, backward, later_s) if compute.sharing else {},
        )

    def _parts(self, forward: Sequence[Event], backward: Sequence[Event], later_s: float) -> Mapping[str, Parts]:
        """Parts of each kind of pass; deferred weight gradients are removed evenly from the computing parts of backward."""
        overlap = self.compute.overlap
        ahead, back = simulate_parts(forward, overlap), simulate_parts(backward, overlap)
        computed_s = sum(part.seconds for part in back if part.computes)
        left = 1.0 - min(later_s / computed_s, 1.0) if computed_s else 1.0
        rest = [part._replace(seconds=left * part.seconds) if part.computes else part for part in back]
        return {FORWARD: tuple(ahead), BACKWARD: tuple(rest), WGRAD: (ProgramPart(later_s, True),)}

    def _weights_s(self, chunk: PipelineChunk, backward: Iterable[Event]) -> float:
        """Seconds of a microbatch's backward that are deferred weight gradients."""
        if not self.stages.pipeline.schedule.splits_backward:
            return 0.0
        later = deferred_linear_ops(chunk.graph, self.strategy, chunk.flow)
        return WGRAD_SHARE * sum(
            event.duration_s
            for event in backward
            if event.phase == "backward" and event.name in later and "op" in event.details
        )

    def _bytes(self, events: Iterable[Event]) -> float:
        calls = [event.details for event in events if event.category == "comm"]
        group_size = self.strategy.mesh.group_size
        return float(sum(beta_factor(call["kind"], group_size(call["axes"])) * call["num_bytes"] for call in calls))

    def _messages_s(self, upper: int, backward: bool, at_once: bool = False) -> float:
        """Seconds of one microbatch's messages across the cut after chunk ``upper``, from all ranks of its stage.

        ``at_once`` as in ``LinkModel.even_exchange_s``.
        """
        size, pipeline = self.strategy.mesh.size, self.stages.pipeline
        source, target = pipeline.stage_of(upper + backward), pipeline.stage_of(upper + (not backward))
        ranks = np.arange(size)
        sizes = [num_bytes for _, num_bytes, gradient in self.stages.sent_values(upper) if gradient or not backward]
        links = self.models.between(source, target)
        ends = source * size + ranks, target * size + ranks
        return sum(links.even_exchange_s(*ends, each, at_once) for each in sizes)

    def _once_per_step(self, stage: int) -> StepSeconds:
        """Activity of a stage once a step in addition to its passes, without the optimizer."""
        spent = StepSeconds(exposed={GRADIENT_SYNC: self._ending_s(stage)})
        for at in self.stages.pipeline.chunks_of(stage):
            spent = spent.plus(self.chunks[at].once)
        return spent

    def _ending_s(self, stage: int) -> float:
        """Seconds of the sums of shared parameters and of the losses."""
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
            ahead = sum(size for _, size, _ in self.stages.sent_values(at))
            back = sum(size for _, size, gradient in (self.stages.sent_values(at - 1) if at else ()) if gradient)
            sent += self.chunks[at].intra_stage_bytes + self.strategy.num_micro * (ahead + back)
        for call in self.stages.ending(stage):
            ranks = len(call.stages) if isinstance(call, StageCall) else self.strategy.mesh.group_size(call.axes)
            sent += beta_factor(call.kind, ranks) * call.num_bytes
        return sent

    def _optimizer_s(self, stage: int) -> float:
        mesh, strategy = self.strategy.mesh, self.strategy
        sizes: dict[TensorMeta, list[float]] = {}
        served = self.stages.served_of(stage)
        for leaf in self.stages.trained_of(stage):
            if leaf.name in served:
                continue
            local = leaf.meta.num_bytes / split_factor(strategy.parameters[leaf.name], mesh)
            sizes.setdefault(replace(leaf.meta, shape=()), []).append(local)
        boxing, compute = self.models[stage]
        cluster, name, offload = boxing.network.cluster, strategy.optimizer, strategy.offload
        return sum(
            float(optimizer_s(compute, cluster, name, np.array(local), meta, offload=offload).sum())
            for meta, local in sizes.items()
        )
