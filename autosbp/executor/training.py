"""Training under a strategy: microbatches, gradient synchronisation, optimizer. Reads like a plain training loop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch._dynamo  # noqa: F401  # the first optimizer of a process imports it: here, so that ranks fork with it
import torch.distributed as dist

from autosbp.costmodel.collectives import Collective, StepCollectives
from autosbp.errors import InputError
from autosbp.executor.full_precision import FullPrecision, is_short
from autosbp.executor.gathering import ParameterGathers
from autosbp.executor.lowering import lower
from autosbp.executor.offload import HostOptimizer
from autosbp.executor.parameters import local_parameters
from autosbp.executor.reduction import GradientBuckets
from autosbp.executor.runtime import Issued, Runtime
from autosbp.executor.whole_batch import Denominators
from autosbp.graph.ir import LogicalGraph
from autosbp.plan import Strategy
from autosbp.sbp.boxing import permute_peers
from autosbp.sbp.mesh import Mesh
from autosbp.sbp.parameters import parameter_flow
from autosbp.sbp.whole_batch import in_parts


class TrainingLoop(ABC):
    """What trainers have in common, with stages or without."""

    runtime: Runtime
    optimizer: Any

    @abstractmethod
    def forward_backward(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Loss of the global batch; every parameter of this rank has its whole gradient."""

    def step(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """One training step; returns the loss before it, on the device, for which nothing has waited yet."""
        loss = self.forward_backward(batch)
        self.optimizer.step()
        self.runtime.step += 1
        return loss

    def issued(self) -> list[Issued]:
        """Collectives and messages since the last call, in order."""
        done, self.runtime.issued = self.runtime.issued, []
        return done

    @abstractmethod
    def expected(self) -> list[Issued]:
        """What the cost model charged for one step, as this rank takes part in it."""


class Trainer(TrainingLoop):
    """One rank of a training run.

    Args:
        graph: with its batch symbolic.
        strategy: its mesh has as many devices as the process group has ranks.
        parameters: whole initial parameters by name; this rank keeps its shards.
        learning_rate: of AdamW or SGD, as the strategy says.
        seed: of dropout; the same on every rank.
        runtime: this rank's; made here where there is none yet.
        compiler: ``torch.compile``'s backend for the local ops, such as ``inductor``; None runs them one by one.

    After ``forward_backward`` every parameter of ``locals`` has its whole gradient. All collectives are issued in the
    order of ``expected``: those of the program, and between them gathers of parameters and reductions of gradients,
    which overlap with the work around them.
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
    ) -> None:
        self.graph = graph.bind(**dict.fromkeys(graph.symbols, strategy.micro_batch))
        self.strategy = strategy
        if strategy.pipeline is not None:
            stages = strategy.pipeline.num_stages
            raise InputError(
                "strategy.pipeline", stages, "a strategy without stages is expected; make_trainer takes both"
            )
        self.runtime = runtime or Runtime(strategy.mesh, dist.get_rank(), device, seed=seed)
        flow = parameter_flow(self.graph, strategy)
        self.charged = StepCollectives(self.graph, strategy, flow).step()
        self.runtime.make_groups([call.axes for call in self.charged])
        parts = in_parts(graph, strategy.global_batch, strategy.micro_batch)
        self.scale = parts.scale
        self.denominators = Denominators(
            self.graph, parts.denominators, strategy.micro_batch, strategy.num_micro, device
        )
        program = lower(self.graph, strategy, self.runtime.rank, flow, denominators=self.denominators.names)
        self.program = program.to(device)
        self._run: Any = (
            self.program if compiler is None else torch.compile(self.program, backend=compiler, dynamic=False)
        )
        names = [leaf.name for leaf in self.graph.parameters]
        self.locals = local_parameters(self.graph, strategy, parameters, names, self.runtime.coordinate, device)
        self.gathers = self.runtime.gathers = ParameterGathers(
            flow, strategy.gather == "use", self.locals, self.runtime, lambda name: self.buckets.arrived(name)
        )
        self.buckets = GradientBuckets(flow, self.locals, self.runtime)
        self.optimizer = make_optimizer(
            strategy.optimizer, self.locals.values(), learning_rate, offload=strategy.offload
        )

    @property
    def chunks(self) -> list[Trainer]:
        """The parts that have a program and gathers of their own: one, without a pipeline."""
        return [self]

    def forward_backward(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Loss of the global batch, gradients of every parameter synchronised; summed over microbatches, in which they are
        those of the whole batch where ``sbp.whole_batch`` says that they can be."""
        count, size = self.strategy.num_micro, self.strategy.micro_batch
        losses = []
        self.optimizer.zero_grad(set_to_none=True)
        self.runtime.denominators = self.denominators.of(batch)
        with self.runtime.active():
            for at in range(count):
                self.runtime.micro = at
                inputs = [batch[leaf.name][at * size : (at + 1) * size] for leaf in self.graph.inputs]
                self.gathers.begin(at, count)
                self.buckets.open = at == count - 1
                with self.gathers.saving():
                    loss = self._run(*self.locals.values(), *inputs)
                (loss * self.scale if self.scale != 1.0 else loss).backward()
                self.gathers.end()
                losses.append(loss.detach())
            self.gathers.finish()
            self.buckets.finish()
            self.runtime.finish()
        return torch.stack(losses).double().sum() * self.scale

    def expected(self) -> list[Issued]:
        """What the cost model charged for one step, as this rank takes part in it."""
        return expected_issues(self.charged, self.strategy.mesh, self.runtime.rank)


def expected_issues(charged: list[Collective], mesh: Mesh, rank: int) -> list[Issued]:
    """The charged collectives as one rank sees them; a rank that a permutation leaves in place sends nothing."""
    issues = []
    for call in charged:
        ranks = permute_peers(mesh, call.axes, rank) if call.kind == "p2p" else mesh.group_ranks(call.axes, rank)
        if call.kind != "p2p" or len(ranks) > 1:
            issues.append(Issued(call.kind, call.num_bytes, tuple(mesh.device(each) for each in ranks)))
    return issues


def make_optimizer(
    name: str, parameters: Iterable[torch.Tensor], learning_rate: float, *, offload: bool = False
) -> Any:
    """AdamW or SGD over the plain tensors that are trained, of which a stage may have none; one kernel for all of them,
    where torch has one. Short ones have float32 copies. With ``offload``, on the host."""
    if offload:
        return HostOptimizer(lambda copies: make_optimizer(name, copies, learning_rate), parameters)
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    if any(is_short(parameter) for parameter in trained):
        return FullPrecision(lambda some: make_optimizer(name, some, learning_rate), trained)
    fused = all(parameter.device.type in ("cpu", "cuda") for parameter in trained)
    groups = [{"params": trained}]
    if name == "adamw":
        return torch.optim.AdamW(groups, lr=learning_rate, weight_decay=0.01, fused=fused)
    return torch.optim.SGD(groups, lr=learning_rate, fused=fused)


def random_batch(graph: LogicalGraph, global_batch: int, seed: int) -> dict[str, torch.Tensor]:
    """A valid whole batch, the same on every rank."""
    from autosbp.graph.materialise import dtype_of

    generator = torch.Generator().manual_seed(seed)
    bound = graph.bind(**dict.fromkeys(graph.symbols, global_batch))
    batch = {}
    for leaf in bound.inputs:
        dtype = dtype_of(leaf.meta.dtype)
        if leaf.meta.is_float:
            batch[leaf.name] = torch.randn(leaf.meta.sizes, generator=generator, dtype=torch.float64).to(dtype)
        else:
            batch[leaf.name] = torch.randint(0, leaf.high or 2, leaf.meta.sizes, generator=generator, dtype=dtype)
    return batch
