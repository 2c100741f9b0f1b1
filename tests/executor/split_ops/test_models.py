"""Models whose norms, attention and maxima are split in every way train as on one device."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

from autosbp.cluster.spec import load_cluster
from autosbp.graph.capture import capture
from autosbp.graph.dtype_cast import cast_floats
from autosbp.graph.ir import LogicalGraph
from autosbp.program.chosen_options import checked_choices
from autosbp.testing.strategy_samples import sample_strategies
from autosbp.testing.virtual_program import check_strategy

pytestmark = pytest.mark.integration


class Convolutional(nn.Module):
    """Batch norm in training, group norm, global maxima, cross-entropy."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 12)
        self.batch_norm, self.group_norm = nn.BatchNorm2d(8), nn.GroupNorm(4, 8)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        hidden = self.group_norm(torch.relu(self.batch_norm(self.conv(x))))
        return functional.cross_entropy(self.head(hidden.amax((2, 3))), labels)


class Attentive(nn.Module):
    """RMS norm, causal attention with grouped heads, log-sum-exp of the mixed values."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(16)
        self.query, self.key, self.value = nn.Linear(16, 16), nn.Linear(16, 8), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(x)
        query, key, value = (
            layer(hidden).view(x.shape[0], 8, -1, 4).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return torch.logsumexp(mixed.softmax(1), (1, 3)).sum()


def convolutional() -> LogicalGraph:
    inputs = {"x": torch.randn(4, 3, 6, 6), "labels": torch.zeros(4, dtype=torch.long)}
    return capture(Convolutional().train(), inputs, name="convolutional", input_high={"labels": 12})


def attentive() -> LogicalGraph:
    return capture(Attentive().train(), {"x": torch.randn(4, 8, 16)}, name="attentive")


@pytest.mark.some(2)
@pytest.mark.parametrize(("make", "ops"), [
    (convolutional, {"aten.batch_norm.default", "aten.group_norm.default", "aten.amax.default"}),
    (attentive, {
        "aten.rms_norm.default", "aten.scaled_dot_product_attention.default", "aten.softmax.int",
        "aten.logsumexp.default",
    }),
], ids=["convolutional", "attentive"])  # fmt: skip
def test_split_implementations_train_as_one_device_does(make: Callable[[], LogicalGraph], ops: set[str]) -> None:
    graph = cast_floats(make(), "float32", "float64")
    served: set[str] = set()
    for strategy in sample_strategies(graph, load_cluster("local:2x2"), 24, global_batch=8, micro_batch=8):
        check_strategy(graph, strategy)
        bound = graph.bind(batch=8)
        for node in bound.nodes:
            if node.name in strategy.signatures:
                choices = checked_choices(bound, node, strategy.signatures[node.name], strategy.mesh.ndim)
                served |= {node.op for choice in choices if choice.needs_split_impl}
    assert ops <= served, "each implementation has run"
