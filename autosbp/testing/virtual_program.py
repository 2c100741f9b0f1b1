"""Whether a strategy trains the model: the lowered program of every rank against the whole graph, in one process."""

from __future__ import annotations

import torch

from autosbp.costmodel.evaluate import collectives
from autosbp.executor.lowering import lower
from autosbp.executor.parameters import full_parameters, shard
from autosbp.executor.runtime import Issued, Runtime
from autosbp.executor.training import expected_issues, random_batch
from autosbp.graph.ir import LogicalGraph
from autosbp.graph.materialise import materialise
from autosbp.plan import Strategy
from autosbp.testing.virtual import VirtualRanks
from autosbp.testing.virtual_layouts import assert_holds, gradient_layout


def check_strategy(graph: LogicalGraph, strategy: Strategy, seed: int = 0) -> list[list[Issued]]:
    """One microbatch on virtual ranks; returns the collectives that each rank issued.

    Raises ``AssertionError`` unless every rank's loss and every parameter's gradient (summed over the axes where it is
    stored B, as the end of a step does) equal the whole graph's, and the collectives are those that are charged.
    """
    bound = graph.bind(**dict.fromkeys(graph.symbols, strategy.micro_batch))
    parameters = full_parameters(graph, seed)
    batch = random_batch(graph, strategy.micro_batch, seed + 1)
    inputs = [batch[leaf.name] for leaf in graph.inputs]
    mesh = strategy.mesh
    programs = [lower(bound, strategy, rank) for rank in range(mesh.size)]

    def work(runtime: Runtime) -> tuple[torch.Tensor, list[torch.Tensor], list[Issued]]:
        leaves = [
            shard(value, strategy.parameters[name], mesh, runtime.coordinate).requires_grad_()
            for name, value in parameters.items()
        ]
        loss = programs[runtime.rank](*leaves, *inputs)
        return loss.detach(), _gradients(loss, leaves), runtime.issued

    results = VirtualRanks(mesh).run(work)
    wholes = [value.clone().requires_grad_() for value in parameters.values()]
    loss = materialise(bound)(*wholes, *inputs)
    for rank, (value, _, _) in enumerate(results):
        assert torch.allclose(value, loss, rtol=1e-9), f"rank {rank} has the loss {value}, not {loss}"
    for at, (name, gradient) in enumerate(zip(parameters, _gradients(loss, wholes), strict=True)):
        parts = [gradients[at] for _, gradients, _ in results]
        assert_holds(parts, gradient_layout(strategy.parameters[name]), mesh, gradient, f"gradient of {name}")
    charged = [call for call in collectives(bound, strategy) if call.phase != "sync"]
    charged = charged[: len(charged) // strategy.num_micro]
    for rank, (_, _, issued) in enumerate(results):
        assert issued == expected_issues(charged, mesh, rank), f"rank {rank} issued {issued}"
    return [issued for _, _, issued in results]


def _gradients(loss: torch.Tensor, leaves: list[torch.Tensor]) -> list[torch.Tensor]:
    found = torch.autograd.grad(loss, leaves, allow_unused=True)
    return [torch.zeros_like(leaf) if grad is None else grad for leaf, grad in zip(leaves, found, strict=True)]
