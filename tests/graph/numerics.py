"""Comparing a graph with the module that it was captured from, in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from autosbp.graph.ir import LogicalGraph
from autosbp.graph.to_fx import initial_parameter, to_graph_module

TOLERANCE = 1e-10


class Double(TorchFunctionMode):
    """Within, casts to float32 are casts to float64: transformers' norms and losses cast whatever the model's dtype."""

    def __torch_function__(
        self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.Tensor.float:
            func = torch.Tensor.double
        wide = {key: _widen(value) for key, value in (kwargs or {}).items()}
        return func(*(_widen(value) for value in args), **wide)


def _widen(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value


def weights(module: torch.nn.Module, seed: int = 0) -> None:
    """Give every parameter of a float64 module reproducible values of a trained model's size."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in module.named_parameters():
        with torch.no_grad():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.1
            parameter.copy_(noise + (1.0 if "norm" in name and name.endswith("weight") else 0.0))


def run_graph(
    graph: LogicalGraph, sources: Mapping[str, torch.Tensor], batch: Mapping[str, torch.Tensor]
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The loss and the gradient of each source tensor, put together from those of the graph's parameters."""
    leaves = {name: tensor.detach().clone().requires_grad_(tensor.requires_grad) for name, tensor in sources.items()}
    parameters = [initial_parameter(leaf, leaves) for leaf in graph.parameters]
    size = next(iter(batch.values())).shape[0]
    program = to_graph_module(graph.bind(**dict.fromkeys(graph.symbols, size)))
    torch.manual_seed(7)
    loss = program(*parameters, *(batch[leaf.name] for leaf in graph.inputs))
    used = sorted({leaf.source for leaf in graph.parameters if leaf.trained})
    grads = torch.autograd.grad(loss, [leaves[name] for name in used])
    return loss, dict(zip(used, grads, strict=True))


def assert_same(graph: LogicalGraph, module: torch.nn.Module, batch: Mapping[str, torch.Tensor]) -> None:
    """The graph's loss and every gradient equal the module's."""
    named = dict(module.named_parameters())
    loss, grads = run_graph(graph, named, batch)
    named = {name: parameter for name, parameter in named.items() if parameter.requires_grad}
    torch.manual_seed(7)
    returned = module(**batch)
    expected = (
        returned
        if isinstance(returned, torch.Tensor)
        else returned[0]
        if isinstance(returned, tuple)
        else returned.loss
    )
    module.zero_grad()
    expected.backward()
    assert torch.isfinite(expected)
    assert abs(loss - expected) <= TOLERANCE * abs(expected)
    largest = max(float(parameter.grad.abs().max()) for parameter in named.values())
    assert set(grads) == set(named)
    for name, parameter in named.items():
        scale = max(float(parameter.grad.abs().max()), 1e-6 * largest)
        assert float((grads[name] - parameter.grad).abs().max()) <= TOLERANCE * scale, name
