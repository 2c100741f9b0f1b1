"""Single-device training of the logical graph: what training under any strategy must equal."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from autosbp.executor.training import make_optimizer
from autosbp.graph.ir import LogicalGraph
from autosbp.graph.materialise import materialise


class Reference:
    """The steps of ``Trainer`` on one device, with whole parameters, on the whole batch at once."""

    def __init__(
        self,
        graph: LogicalGraph,
        parameters: Mapping[str, torch.Tensor],
        *,
        global_batch: int,
        optimizer: str = "adamw",
        learning_rate: float = 1e-3,
    ) -> None:
        self.graph = graph.bind(**dict.fromkeys(graph.symbols, global_batch))
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
        loss = self.program(*self.parameters.values(), *(batch[leaf.name] for leaf in self.graph.inputs))
        loss.backward()
        whole: torch.Tensor = loss.detach().double()
        return whole

    def step(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        loss = self.forward_backward(batch)
        self.optimizer.step()
        return loss
