"""Pipeline training: the loop of ``executor.training``, with passes in the order of a schedule."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from autosbp.costmodel.pipeline_program import PipelineProgram, SharedGradients, StageCall
from autosbp.costmodel.step_collectives import Collective
from autosbp.executor import _torch_distributed
from autosbp.executor.gradient_buckets import FlatGradients
from autosbp.executor.loss_scaling import loss_scaler
from autosbp.executor.master_weights import clear_gradients
from autosbp.executor.parameter_shards import local_parameters
from autosbp.executor.pipeline._base import PipelineRuntime
from autosbp.executor.pipeline._chunk import ChunkProgram
from autosbp.executor.pipeline._groups import StageGroups
from autosbp.executor.pipeline._torch import TorchPipelining
from autosbp.executor.running_statistics import local_statistics
from autosbp.executor.runtime import IssuedCollective
from autosbp.executor.synchronizers import MessageKernels
from autosbp.executor.training import (
    Trainer,
    TrainingLoop,
    expected_issues,
    message_kernels_factory,
    planned_optimizer,
    synchronized_optimizer,
)
from autosbp.graph.ir import LogicalGraph
from autosbp.plan.plan import Strategy
from autosbp.plan.schedules import require_runtime
from autosbp.program.microbatch_loss import microbatch_loss_scaling


class PipelineTrainer(TrainingLoop):
    """One rank of a pipeline training run.

    Arguments and methods are those of ``Trainer``, without ``torch.compile``. A receive counts as issued when a pass
    waits for it. ``locals`` are this rank's parts of the parameters that its stage stores. Each stage that reads a
    shared parameter has a copy, and gradients are summed over these stages once a step, so that copies stay equal
    (Narayanan et al. 2021, section 2.2: tied embeddings). ``groups`` reuses those of an earlier trainer on the same
    mesh.
    """

    def __init__(
        self,
        graph: LogicalGraph,
        strategy: Strategy,
        parameters: Mapping[str, torch.Tensor],
        *,
        device: torch.device,
        learning_rate: float = 1e-3,
        seed: int = 0,
        groups: StageGroups | None = None,
        pipeline_runtime: PipelineRuntime | None = None,
        with_optimizer: bool = True,
        buffers: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        self.graph = graph.bind(**dict.fromkeys(graph.symbols, strategy.micro_batch))
        self.strategy, self.stages = strategy, PipelineProgram(self.graph, strategy)
        pipeline = self.stages.pipeline
        if pipeline_runtime is None:
            require_runtime(pipeline.schedule.name)
        self.groups = groups or StageGroups(strategy.mesh, pipeline.num_stages, dist.get_rank())
        self.stage = self.groups.stage
        everyone = [self.stages.calls(stage) for stage in range(pipeline.num_stages)]
        axes = [
            call.axes
            for calls in everyone
            for call in calls
            if isinstance(call, Collective) and call.kind != "p2p" and call.root < 0
        ]
        self.runtime = self.groups.runtime(axes, device, seed)
        self.predicted_calls = everyone[self.stage]
        across = {
            call.stages for calls in everyone for call in calls if isinstance(call, StageCall) and call.kind != "p2p"
        }
        for stages in sorted(across):
            self.groups.cross_stage_group(stages)
        names = self.stages.parameters_of(self.stage)
        self.locals = local_parameters(self.graph, strategy, parameters, names, self.runtime.coordinate, device)
        self.parts = microbatch_loss_scaling(graph, strategy.global_batch, strategy.micro_batch)
        here, coordinate = self.stages.of(self.stage), self.runtime.coordinate
        self.statistics = {
            node: found
            for chunk in here
            for node, found in local_statistics(chunk.graph, strategy, buffers or {}, coordinate, device).items()
        }
        self.runtime.running_statistics = self.statistics
        optimizer = partial(planned_optimizer, self.graph, strategy, learning_rate=learning_rate)
        flows = [chunk.flow for chunk in self.stages.chunks]
        make_kernels = message_kernels_factory(
            flows, strategy, self.runtime, self.runtime.rank, optimizer if with_optimizer else None
        )
        self.chunks = [
            ChunkProgram(chunk, strategy, self.locals, self.runtime, self.parts, make_kernels) for chunk in here
        ]
        self.shared = [
            (each, FlatGradients([self.locals[name] for name in each.names]))
            for each in self.stages.shared
            if self.stage in each.stages
        ]
        self.optimizer = (
            synchronized_optimizer(self.locals, self.message_kernels, optimizer) if with_optimizer else None
        )
        self.scaler = loss_scaler(self.graph, device)
        self._all = self._cross_stage_group(tuple(range(pipeline.num_stages)))
        self.pipeline_runtime = pipeline_runtime or TorchPipelining()
        self.pipeline_runtime.build(self.chunks, pipeline, self.runtime, self._all[0])

    @property
    def message_kernels(self) -> list[MessageKernels]:
        return [chunk.kernels for chunk in self.chunks if chunk.kernels is not None]

    def forward_backward(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Loss of the global batch on every rank; gradients of all the stage's parameters are complete.

        Both are summed over microbatches, as in ``Trainer``.
        """
        clear_gradients(self.locals.values(), set_to_none=True)
        self.runtime.denominators = {}
        with self.runtime.active():
            for chunk in self.chunks:
                chunk.load(batch)
            self.pipeline_runtime.step(self.strategy.num_micro)
            for chunk in self.chunks:
                chunk.finish()
            for shared, gradients in self.shared:
                self._reduce_shared(shared, gradients)
            self.runtime.finish()
            return self._broadcast_losses().double().sum() * self.parts.scale

    @torch.no_grad()
    def evaluate(self, batch: Mapping[str, torch.Tensor], *, training: bool = False) -> torch.Tensor:
        """Loss of the global batch on every rank, without gradients; without dropout unless ``training``."""
        self.runtime.denominators = {}
        with self.runtime.active():
            for chunk in self.chunks:
                chunk.load(batch)
            for micro in range(self.strategy.num_micro):
                for chunk in self.chunks:
                    self._pass_on(chunk, micro, training)
            for chunk in self.chunks:
                chunk.gathers.schedule.drop_copies()
            self.runtime.finish()
            return self._broadcast_losses().double().sum() * self.parts.scale

    def _pass_on(self, chunk: ChunkProgram, micro: int, training: bool) -> None:
        """Forward pass of a chunk alone: receive from the chunk before, send to the one after."""
        group, ranks = self._all
        stages, device = self.stages.pipeline.num_stages, self.runtime.device
        received = tuple(torch.empty(each.shape, dtype=each.dtype, device=device) for each in chunk.receives)
        for value in received:
            dist.recv(value, ranks[(chunk.index - 1) % stages], group)
        sent = chunk.forward(micro, received, evaluation=not training)
        for value in () if chunk.is_last else sent:
            dist.send(value, ranks[(chunk.index + 1) % stages], group)

    def expected(self) -> list[IssuedCollective]:
        """The collectives and messages of one step that the cost model charged to this rank."""
        issues = []
        for call in self.predicted_calls:
            if isinstance(call, StageCall):
                ranks = tuple(stage * self.strategy.mesh.size + self.runtime.rank for stage in call.stages)
                issues.append(IssuedCollective(call.kind, call.num_bytes, ranks))
            else:
                issues += expected_issues([call], self.runtime.mesh, self.runtime.rank)
        return issues

    def _reduce_shared(self, shared: SharedGradients, gradients: FlatGradients) -> None:
        groups = [self.runtime.group(shared.axes)] if shared.axes else []
        if len(shared.stages) > 1:
            groups.append(self._cross_stage_group(shared.stages))
        flat = gradients.fill()
        for group, ranks in groups:
            self.runtime.record("all_reduce", flat, ranks)
            _torch_distributed.start_all_reduce(flat, group).wait()

    def _broadcast_losses(self) -> torch.Tensor:
        """Losses of the microbatches, broadcast from the last stage."""
        last = self.chunks[-1]
        if last.is_last:
            losses = torch.stack([last.losses[micro] for micro in range(self.strategy.num_micro)])
        else:
            dtype = last.loss_dtype
            losses = torch.empty(self.strategy.num_micro, dtype=dtype, device=self.runtime.device)
        group, ranks = self._all
        self.runtime.record("broadcast", losses, ranks)
        _torch_distributed.broadcast(losses, ranks[-1], group)
        return losses

    def _cross_stage_group(self, stages: tuple[int, ...]) -> tuple[Any, list[int]]:
        group = self.groups.cross_stage_group(stages)
        assert group is not None
        return group


def make_trainer(
    graph: LogicalGraph,
    strategy: Strategy,
    parameters: Mapping[str, torch.Tensor],
    *,
    device: torch.device,
    learning_rate: float = 1e-3,
    seed: int = 0,
    compiler: str | None = None,
    with_optimizer: bool = True,
    buffers: Mapping[str, torch.Tensor] | None = None,
) -> Trainer | PipelineTrainer:
    """The trainer for a strategy, see ``Trainer``; stages run without a compiler."""
    options: dict[str, Any] = {
        "learning_rate": learning_rate,
        "seed": seed,
        "with_optimizer": with_optimizer,
        "buffers": buffers,
    }
    if strategy.pipeline is None:
        return Trainer(graph, strategy, parameters, device=device, compiler=compiler, **options)
    return PipelineTrainer(graph, strategy, parameters, device=device, **options)
