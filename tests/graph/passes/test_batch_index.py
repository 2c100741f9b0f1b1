"""Picks of one position per sample become gathers, and differences of neighbours slices: what torch computes, by batch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from autosbp.graph.capture import capture
from autosbp.sbp.rules import RULES, check_graph
from tests.graph.numerics import assert_same, weights

pytestmark = pytest.mark.integration

Tensor = torch.Tensor


class Body(nn.Module):
    def __init__(self, body: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.linear, self.body = nn.Linear(6, 8), body

    def forward(self, x: Tensor, at: Tensor) -> Tensor:
        return self.body(self.linear(x), at).square().mean()


def inputs(batch: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(batch)
    x = torch.randn(batch, 5, 6, generator=generator, dtype=torch.float64)
    return {"x": x, "at": torch.randint(0, 5, (batch,), generator=generator)}


BODIES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "rows": lambda y, at: y[torch.arange(y.shape[0]), at],
    "from the end": lambda y, at: y[torch.arange(y.shape[0]), at - 5],
    "numbers": lambda y, at: y[..., 0][torch.arange(y.shape[0]), at],
    "blocks": lambda y, at: y.view(-1, 5, 2, 4)[torch.arange(y.shape[0]), at],
    "differences": lambda y, _: y.diff(dim=1),
    "differences twice": lambda y, _: y.diff(n=2),
    "differences with ends": lambda y, _: y.diff(dim=1, prepend=y[:, :1] * 2.0, append=y[:, :2]),
}


@pytest.mark.parametrize("name", BODIES)
def test_the_result_is_that_of_torch_in_ops_with_rules(name: str) -> None:
    module = Body(BODIES[name]).double()
    weights(module)
    graph = capture(module, inputs(3), name="model")
    check_graph(graph)
    assert {node.op for node in graph.nodes} <= set(RULES)
    assert not any(node.op in ("aten.index.Tensor", "aten.arange.default") for node in graph.nodes)
    for batch in (2, 5):
        assert_same(graph, module, inputs(batch))
