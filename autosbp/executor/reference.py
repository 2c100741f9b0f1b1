"""Single-device training of the logical graph: what training under any strategy must equal."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from autosbp.executor.training import make_optimizer
from autosbp.graph.ir import LogicalGraph
from autosbp.graph.materialise import materialise


class Reference:
    """The same loop as ``Trainer`` on one device with whole parameters."""

    def __init__(
        self,
        graph: LogicalGraph,
        parameters: Mapping[str, torch.Tensor],
        *,
        global_batch: int,
        micro_batch: int,
        optimizer: str = "adamw",
        learning_rate: float = 1e-3,
    ) -> None:
        self.graph = graph.bind(**dict.fromkeys(graph.symbols, micro_batch))
        self.count, self.size = global_batch // micro_batch, micro_batch
        self.program = materialise(self.graph)
        self.parameters = {
            leaf.name: parameters[leaf.name].clone().requires_grad_(leaf.trained and leaf.meta.is_float)
            for leaf in graph.parameters
        }
        self.optimizer = make_optimizer(
            optimizer, [value for value in self.parameters.values() if value.requires_grad], learning_rate
        )

    def forward_backward(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Loss and gradients of the global batch."""
        self.optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), dtype=torch.float64)
        for at in range(self.count):
            inputs = [batch[leaf.name][at * self.size : (at + 1) * self.size] for leaf in self.graph.inputs]
            loss = self.program(*self.parameters.values(), *inputs)
            (loss / self.count).backward()
            total += loss.detach().double() / self.count
        return total

    def step(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        loss = self.forward_backward(batch)
        self.optimizer.step()
        return loss
