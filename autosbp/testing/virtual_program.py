"""Check a strategy numerically: a training step of every rank against the whole graph, in one process."""

from __future__ import annotations

import torch

from autosbp.executor.parameter_shards import initial_parameters
from autosbp.executor.runtime import IssuedCollective, Runtime
from autosbp.executor.single_device_reference import SingleDeviceReference
from autosbp.executor.training import Trainer, random_batch
from autosbp.graph.ir import LogicalGraph
from autosbp.plan.plan import Strategy
from autosbp.sbp.layout import B, I
from autosbp.testing.virtual import VirtualRanks
from autosbp.testing.virtual_layouts import assert_shards_match


def check_strategy(graph: LogicalGraph, strategy: Strategy, seed: int = 0) -> list[list[IssuedCollective]]:
    """Run one training step on virtual ranks; return the collectives that each rank issued.

    Raises:
        AssertionError: if a rank's loss or a parameter's gradient differs from one device's, or the collectives differ
            from those that the cost model charges.
    """
    parameters = initial_parameters(graph, seed)
    batch = random_batch(graph, strategy.global_batch, seed + 1)
    mesh = strategy.mesh

    def work(
        runtime: Runtime,
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor], list[IssuedCollective], list[IssuedCollective]]:
        trainer = Trainer(graph, strategy, parameters, device=torch.device("cpu"), runtime=runtime)
        loss = trainer.forward_backward(batch)
        gradients = {
            name: torch.zeros_like(part) if part.grad is None else part.grad for name, part in trainer.locals.items()
        }
        return loss, gradients, trainer.issued(), trainer.expected()

    results = VirtualRanks(mesh).run(work)
    reference = SingleDeviceReference(
        graph, parameters, global_batch=strategy.global_batch, optimizer=strategy.optimizer
    )
    loss = reference.forward_backward(batch)
    for rank, (value, _, _, _) in enumerate(results):
        assert torch.allclose(value, loss, rtol=1e-9), f"rank {rank} has the loss {value}, not {loss}"
    for name, whole in reference.parameters.items():
        wanted = torch.zeros_like(whole) if whole.grad is None else whole.grad
        layout = tuple(I if sbp == B else sbp for sbp in strategy.parameters[name])
        parts = [gradients[name] for _, gradients, _, _ in results]
        assert_shards_match(parts, layout, mesh, wanted, f"gradient of {name}")
    for rank, (_, _, issued, expected) in enumerate(results):
        assert issued == expected, f"rank {rank} issued {issued}, not {expected}"
    return [issued for _, _, issued, _ in results]
