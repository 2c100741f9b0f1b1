"""Single-device training of the logical graph: what training under any strategy must equal."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import torch

from autosbp.executor.training import make_optimizer
from autosbp.graph.ir import LogicalGraph
from autosbp.graph.materialise import materialise
from autosbp.limits import free_bytes
from autosbp.sbp.whole_batch import in_parts

_HOST = torch.device("cpu")
_STATES, _FULL_BYTES = 5, 4
"""Of a parameter: itself, its gradient, two moments and a copy in full precision, at most."""


def reference_device(graph: LogicalGraph, micro_batch: int, device: torch.device) -> tuple[torch.device, int | None]:
    """Where a ``Reference`` runs, and the bytes that it has there for what its ops make: on ``device`` if that has room for
    all parameters, their gradients and the optimizer's state beside a microbatch of the graph, else on the host."""
    if device.type != "cuda":
        return device, free_bytes()
    torch.cuda.empty_cache()
    left = int(torch.cuda.mem_get_info(device)[0]) - sum(
        _STATES * max(leaf.meta.num_bytes, _FULL_BYTES * prod(leaf.meta.sizes)) for leaf in graph.parameters
    )
    one = graph.bind(**dict.fromkeys(graph.symbols, micro_batch))
    return (device, left) if _made(one) <= left else (torch.device("cpu"), free_bytes())


def _made(bound: LogicalGraph) -> int:
    return sum(meta.num_bytes for node in bound.nodes for meta in node.outputs)


def fitting_batch(graph: LogicalGraph, global_batch: int, micro_batch: int, room: int | None) -> int:
    """The whole batch; or, where all that its ops make takes more than so many bytes, a microbatch."""
    whole = graph.bind(**dict.fromkeys(graph.symbols, global_batch))
    return global_batch if room is None or _made(whole) <= room else micro_batch


class Reference:
    """The steps of ``Trainer`` on one device, with whole parameters, on the whole batch at once.

    With a smaller ``micro_batch``, for want of memory, gradients and losses of the parts are added up as ``sbp.whole_batch``
    weighs them, but for denominators: parts divide by their own, which is the same where as many labels count in each.
    """

    def __init__(
        self,
        graph: LogicalGraph,
        parameters: Mapping[str, torch.Tensor],
        *,
        global_batch: int,
        micro_batch: int | None = None,
        optimizer: str = "adamw",
        learning_rate: float = 1e-3,
        device: torch.device = _HOST,
    ) -> None:
        self.device = device
        self.size = micro_batch or global_batch
        self.count = global_batch // self.size
        self.scale = in_parts(graph, global_batch, self.size).scale
        self.graph = graph.bind(**dict.fromkeys(graph.symbols, self.size))
        self.program = materialise(self.graph).to(device)
        self.parameters = {
            leaf.name: parameters[leaf.name].to(device, copy=True).requires_grad_(leaf.trained and leaf.meta.is_float)
            for leaf in graph.parameters
        }
        self.optimizer = make_optimizer(
            optimizer, [value for value in self.parameters.values() if value.requires_grad], learning_rate
        )

    def forward_backward(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Loss and gradients of the global batch."""
        self.optimizer.zero_grad(set_to_none=True)
        whole = torch.zeros((), dtype=torch.float64)
        for at in range(self.count):
            part = slice(at * self.size, (at + 1) * self.size)
            inputs = [batch[leaf.name][part].to(self.device) for leaf in self.graph.inputs]
            loss = self.program(*self.parameters.values(), *inputs)
            (loss * self.scale if self.scale != 1.0 else loss).backward()
            whole += loss.detach().double().cpu() * self.scale
        return whole

    def step(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        loss = self.forward_backward(batch)
        self.optimizer.step()
        return loss
