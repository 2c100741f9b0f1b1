"""Training under a strategy: microbatches, gradient synchronisation, optimizer. Reads like a plain training loop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch._dynamo  # noqa: F401  # the first optimizer of a process imports it: here, so that ranks fork with it
import torch.distributed as dist
from torch.amp import GradScaler

from autosbp.costmodel.step_collectives import Collective, StepCollectives
from autosbp.errors import InputError
from autosbp.executor.gradient_buckets import GradientBuckets
from autosbp.executor.loss_denominators import BatchDenominators
from autosbp.executor.loss_scaling import loss_scaler, scaled_loss
from autosbp.executor.lowering import lower
from autosbp.executor.master_weights import MasterWeights, clear_gradients, is_half_precision
from autosbp.executor.optimizer_offload import HostOptimizer
from autosbp.executor.parameter_gathers import ParameterGathers
from autosbp.executor.parameter_shards import local_parameters
from autosbp.executor.running_statistics import RunningStatistics, local_statistics
from autosbp.executor.runtime import IssuedCollective, Runtime
from autosbp.graph.evaluation import evaluation_graph
from autosbp.graph.index_bounds import DEFAULT_HIGH
from autosbp.graph.ir import DTYPE_BYTES, LogicalGraph
from autosbp.plan.plan import Strategy
from autosbp.program.microbatch_loss import microbatch_loss_scaling
from autosbp.program.parameter_flow import parameter_flow
from autosbp.sbp.boxing import permute_peers
from autosbp.sbp.mesh import Mesh


class TrainingLoop(ABC):
    """Common part of trainers with and without pipeline stages."""

    runtime: Runtime
    locals: dict[str, torch.Tensor]
    optimizer: Any
    """None if the caller steps the parameters itself."""
    statistics: Mapping[str, RunningStatistics]
    """Running statistics of batch norms by node."""
    scaler: GradScaler
    """Of the loss, enabled where the parameters are float16."""

    @abstractmethod
    def forward_backward(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Loss of the global batch; every parameter of this rank has its complete gradient.

        Gradients are ``runtime.loss_scale`` times those of the loss that is returned.
        """

    def step(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """One training step; returns the loss before the update, on the device, without waiting for it."""
        self.runtime.loss_scale = self.scaler.get_scale()
        loss = self.forward_backward(batch)
        self.runtime.loss_scale = 1.0
        self.scaler.scale(loss)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.runtime.step += 1
        return loss

    def issued(self) -> list[IssuedCollective]:
        """Collectives and messages since the last call, in order."""
        done, self.runtime.issued = self.runtime.issued, []
        return done

    @abstractmethod
    def evaluate(self, batch: Mapping[str, torch.Tensor], *, training: bool = False) -> torch.Tensor:
        """Loss of the global batch without gradients; without dropout unless ``training``."""

    @abstractmethod
    def expected(self) -> list[IssuedCollective]:
        """The collectives and messages of one step that the cost model charged to this rank."""


class Trainer(TrainingLoop):
    """One rank of a training run.

    Args:
        graph: with a symbolic batch.
        strategy: its mesh has as many devices as the process group has ranks.
        parameters: whole initial parameters by name; this rank keeps its shards.
        learning_rate: of AdamW or SGD, as the strategy says.
        seed: of dropout; the same on every rank.
        runtime: this rank's runtime; created if None.
        with_optimizer: make the strategy's optimizer; without it, call ``forward_backward`` instead of ``step``.
        buffers: whole running statistics of batch norm layers, by the names of the module's buffers; layers without them
            keep none (``executor.running_statistics``).
        compiler: ``torch.compile`` backend for the local ops, such as ``inductor``; None runs them one by one.

    After ``forward_backward`` every parameter of ``locals`` has its complete gradient. All collectives are issued in
    the order of ``expected``: those of the program, and between them parameter gathers and gradient reductions, which
    overlap with the work around them.
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
        runtime: Runtime | None = None,
        compiler: str | None = None,
        with_optimizer: bool = True,
        buffers: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        self.graph = graph.bind(**dict.fromkeys(graph.symbols, strategy.micro_batch))
        self.strategy = strategy
        if strategy.pipeline is not None:
            stages = strategy.pipeline.num_stages
            raise InputError(
                "strategy.pipeline", stages, "expected a strategy without stages; make_trainer supports both"
            )
        self.runtime = runtime or Runtime(strategy.mesh, dist.get_rank(), device, seed=seed)
        self.flow = flow = parameter_flow(self.graph, strategy)
        self.predicted_calls = StepCollectives(self.graph, strategy, flow).step()
        self.runtime.make_groups([call.axes for call in self.predicted_calls])
        parts = microbatch_loss_scaling(graph, strategy.global_batch, strategy.micro_batch)
        self.scale = parts.scale
        self.denominators = BatchDenominators(
            self.graph, parts.denominators, strategy.micro_batch, strategy.num_micro, device
        )
        self.statistics = local_statistics(self.graph, strategy, buffers or {}, self.runtime.coordinate, device)
        self.runtime.running_statistics = self.statistics
        self._lowering: dict[str, Any] = {
            "denominators": self.denominators.names,
            "statistics": self.statistics,
        }
        program = lower(self.graph, strategy, self.runtime.rank, flow, **self._lowering)
        self.program = program.to(device)
        self._run: Any = (
            self.program if compiler is None else torch.compile(self.program, backend=compiler, dynamic=False)
        )
        names = [leaf.name for leaf in self.graph.parameters]
        self.locals = local_parameters(self.graph, strategy, parameters, names, self.runtime.coordinate, device)
        self.gathers = self.runtime.gathers = ParameterGathers(
            flow,
            strategy.gather == "use",
            self.locals,
            self.runtime,
            lambda name: self.buckets.schedule.mark_ready(name),
        )
        self.buckets = GradientBuckets(flow, self.locals, self.runtime)
        self.optimizer = planned_optimizer(self.graph, strategy, self.locals, learning_rate) if with_optimizer else None
        self.scaler = loss_scaler(self.graph, device)
        self._evaluation_program: Any = None

    @property
    def chunks(self) -> list[Trainer]:
        """The parts with their own program and gathers: one, without a pipeline."""
        return [self]

    def forward_backward(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Loss of the global batch; gradients of every parameter are synchronised.

        Both are summed over microbatches; they equal those of the whole batch if ``program.microbatch_loss`` makes this
        exact.
        """
        count, size = self.strategy.num_micro, self.strategy.micro_batch
        losses = []
        clear_gradients(self.locals.values(), set_to_none=True)
        self.runtime.denominators = self.denominators.of(batch)
        with self.runtime.active():
            for at in range(count):
                self.runtime.micro = at
                inputs = [batch[leaf.name][at * size : (at + 1) * size] for leaf in self.graph.inputs]
                self.gathers.begin(at, count)
                self.buckets.schedule.open = at == count - 1
                with self.gathers.saved_tensors_context():
                    loss = self._run(*self.locals.values(), *inputs)
                scaled_loss(loss, self.scale * self.runtime.loss_scale).backward()  # type: ignore[no-untyped-call]
                self.gathers.end()
                losses.append(loss.detach())
            self.gathers.finish()
            self.buckets.finish()
            self.runtime.finish()
        return torch.stack(losses).double().sum() * self.scale

    @torch.no_grad()
    def evaluate(self, batch: Mapping[str, torch.Tensor], *, training: bool = False) -> torch.Tensor:
        """Loss of the global batch without gradients; without dropout unless ``training``."""
        if self._evaluation_program is None:
            graph = evaluation_graph(self.graph, self.statistics)
            flow = parameter_flow(graph, self.strategy)
            lowered = lower(graph, self.strategy, self.runtime.rank, flow, **self._lowering)
            self._evaluation_program = lowered.to(self.runtime.device)
        program = self._run if training else self._evaluation_program
        count, size = self.strategy.num_micro, self.strategy.micro_batch
        losses = []
        self.runtime.denominators = self.denominators.of(batch)
        with self.runtime.active():
            for at in range(count):
                self.runtime.micro = at
                self.gathers.begin(at, count)
                inputs = [batch[leaf.name][at * size : (at + 1) * size] for leaf in self.graph.inputs]
                losses.append(program(*self.locals.values(), *inputs))
            self.gathers.schedule.drop_copies()
            self.runtime.finish()
        return torch.stack(losses).double().sum() * self.scale

    def expected(self) -> list[IssuedCollective]:
        """The collectives of one step that the cost model charged to this rank."""
        return expected_issues(self.predicted_calls, self.strategy.mesh, self.runtime.rank)


def expected_issues(charged: list[Collective], mesh: Mesh, rank: int) -> list[IssuedCollective]:
    """The charged collectives as one rank sees them; a rank that a permutation leaves in place sends nothing."""
    issues = []
    for call in charged:
        ranks = permute_peers(mesh, call.axes, rank) if call.kind == "p2p" else mesh.group_ranks(call.axes, rank)
        if call.kind != "p2p" or len(ranks) > 1:
            issues.append(IssuedCollective(call.kind, call.num_bytes, tuple(mesh.device(each) for each in ranks)))
    return issues


def has_master_weights(graph: LogicalGraph) -> bool:
    """Whether the optimizer updates copies of the parameters in a wider dtype."""
    return any(leaf.meta.optimizer_width > DTYPE_BYTES[leaf.meta.dtype] for leaf in graph.trained)


def planned_optimizer(
    graph: LogicalGraph, strategy: Strategy, parameters: Mapping[str, torch.Tensor], learning_rate: float
) -> Any:
    """The strategy's optimizer over one rank's parameters."""
    masters = has_master_weights(graph)
    return make_optimizer(
        strategy.optimizer, parameters.values(), learning_rate, offload=strategy.offload, master_weights=masters
    )


def make_optimizer(
    name: str,
    parameters: Iterable[torch.Tensor],
    learning_rate: float,
    *,
    offload: bool = False,
    master_weights: bool = True,
) -> Any:
    """AdamW or SGD over the trained parameters, plain tensors, of which a stage may have none.

    Uses one fused kernel for all of them where torch has one, float32 copies for half-precision parameters unless
    ``master_weights`` is False, and the host with ``offload``.
    """
    if offload:
        return HostOptimizer(
            lambda copies: make_optimizer(name, copies, learning_rate, master_weights=master_weights), parameters
        )
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    if master_weights and any(is_half_precision(parameter) for parameter in trained):
        return MasterWeights(lambda some: make_optimizer(name, some, learning_rate), trained)
    fused = all(parameter.device.type in ("cpu", "cuda") for parameter in trained)
    groups = [{"params": trained}]
    if name == "adamw":
        return torch.optim.AdamW(groups, lr=learning_rate, weight_decay=0.01, fused=fused)
    return torch.optim.SGD(groups, lr=learning_rate, fused=fused)


def random_batch(graph: LogicalGraph, global_batch: int, seed: int) -> dict[str, torch.Tensor]:
    """A valid whole batch of random values, the same on every rank."""
    from autosbp.graph.to_fx import torch_dtype

    generator = torch.Generator().manual_seed(seed)
    bound = graph.bind(**dict.fromkeys(graph.symbols, global_batch))
    batch = {}
    for leaf in bound.inputs:
        dtype = torch_dtype(leaf.meta.dtype)
        if leaf.meta.is_float:
            batch[leaf.name] = torch.randn(leaf.meta.sizes, generator=generator, dtype=torch.float64).to(dtype)
        else:
            high = leaf.high or DEFAULT_HIGH
            batch[leaf.name] = torch.randint(0, high, leaf.meta.sizes, generator=generator, dtype=dtype)
    return batch
