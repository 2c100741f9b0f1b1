"""Training under a strategy with a pipeline: the loop of ``executor.training``, with passes in the order of a schedule."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist

from autosbp.costmodel.collectives import Collective
from autosbp.costmodel.stages import SharedGradients, StageCall, Stages
from autosbp.executor import _dist
from autosbp.executor.parameters import local_parameters
from autosbp.executor.pipeline._base import PipelineRuntime
from autosbp.executor.pipeline._chunk import ChunkProgram
from autosbp.executor.pipeline._groups import StageGroups
from autosbp.executor.pipeline._torch import TorchPipelining
from autosbp.executor.reduction import FlatGradients
from autosbp.executor.runtime import Issued
from autosbp.executor.training import Trainer, TrainingLoop, expected_issues, make_optimizer
from autosbp.graph.ir import LogicalGraph
from autosbp.plan import Strategy
from autosbp.sbp.whole_batch import in_parts
from autosbp.schedules import require_runtime


class PipelineTrainer(TrainingLoop):
    """One rank of a training run; arguments and methods are those of ``Trainer``, but for ``torch.compile``. A receive is
    issued where a pass waits for it.

    ``locals`` are this rank's parts of what its stage stores. A parameter that several stages read is in each of them, and
    its gradients are summed over them once a step, so that it stays the same (Narayanan et al. 2021, section 2.2: tied
    embeddings). ``groups`` are those of an earlier trainer on the same mesh, to use again.
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
    ) -> None:
        self.graph = graph.bind(**dict.fromkeys(graph.symbols, strategy.micro_batch))
        self.strategy, self.stages = strategy, Stages(self.graph, strategy)
        pipeline = self.stages.pipeline
        if pipeline_runtime is None:
            require_runtime(pipeline.schedule.name)
        self.groups = groups or StageGroups(strategy.mesh, pipeline.num_stages, dist.get_rank())
        self.stage = self.groups.stage
        everyone = [self.stages.calls(stage) for stage in range(pipeline.num_stages)]
        axes = [
            call.axes for calls in everyone for call in calls if isinstance(call, Collective) and call.kind != "p2p"
        ]
        self.runtime = self.groups.runtime(axes, device, seed)
        self.charged = everyone[self.stage]
        across = {
            call.stages for calls in everyone for call in calls if isinstance(call, StageCall) and call.kind != "p2p"
        }
        for stages in sorted(across):
            self.groups.across(stages)
        names = self.stages.parameters_of(self.stage)
        self.locals = local_parameters(self.graph, strategy, parameters, names, self.runtime.coordinate, device)
        self.parts = in_parts(graph, strategy.global_batch, strategy.micro_batch)
        self.chunks = [
            ChunkProgram(chunk, strategy, self.locals, self.runtime, self.parts) for chunk in self.stages.of(self.stage)
        ]
        self.shared = [
            (each, FlatGradients([self.locals[name] for name in each.names]))
            for each in self.stages.shared
            if self.stage in each.stages
        ]
        self.optimizer = make_optimizer(
            strategy.optimizer, self.locals.values(), learning_rate, offload=strategy.offload
        )
        self._all = self._across(tuple(range(pipeline.num_stages)))
        self.pipeline_runtime = pipeline_runtime or TorchPipelining()
        self.pipeline_runtime.build(self.chunks, pipeline, self.runtime, self._all[0])

    def forward_backward(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Loss of the global batch on every rank, gradients of every parameter of the stage whole; summed over
        microbatches, as ``Trainer`` does."""
        self.optimizer.zero_grad(set_to_none=True)
        self.runtime.denominators = {}
        with self.runtime.active():
            for chunk in self.chunks:
                chunk.load(batch)
            self.pipeline_runtime.step(self.strategy.num_micro)
            for chunk in self.chunks:
                chunk.finish()
            for shared, gradients in self.shared:
                self._sum(shared, gradients)
            self.runtime.finish()
        return self._told_losses().double().sum() * self.parts.scale

    def expected(self) -> list[Issued]:
        """What the cost model charged for one step, as this rank takes part in it."""
        issues = []
        for call in self.charged:
            if isinstance(call, StageCall):
                ranks = tuple(stage * self.strategy.mesh.size + self.runtime.rank for stage in call.stages)
                issues.append(Issued(call.kind, call.num_bytes, ranks))
            else:
                issues += expected_issues([call], self.runtime.mesh, self.runtime.rank)
        return issues

    def _sum(self, shared: SharedGradients, gradients: FlatGradients) -> None:
        groups = [self.runtime.group(shared.axes)] if shared.axes else []
        if len(shared.stages) > 1:
            groups.append(self._across(shared.stages))
        flat = gradients.fill()
        for group, ranks in groups:
            self.runtime.record("all_reduce", flat, ranks)
            _dist.start_all_reduce(flat, group).wait()

    def _told_losses(self) -> torch.Tensor:
        """The losses of the microbatches, which the last stage knows."""
        last = self.chunks[-1]
        if last.is_last:
            losses = torch.stack([last.losses[micro] for micro in range(self.strategy.num_micro)])
        else:
            dtype = last.loss_dtype
            losses = torch.empty(self.strategy.num_micro, dtype=dtype, device=self.runtime.device)
        group, ranks = self._all
        self.runtime.record("broadcast", losses, ranks)
        _dist.broadcast(losses, ranks[-1], group)
        return losses

    def _across(self, stages: tuple[int, ...]) -> tuple[object, list[int]]:
        group = self.groups.across(stages)
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
) -> Trainer | PipelineTrainer:
    """The trainer for a strategy, see ``Trainer``."""
    kind = Trainer if strategy.pipeline is None else PipelineTrainer
    return kind(graph, strategy, parameters, device=device, learning_rate=learning_rate, seed=seed)
