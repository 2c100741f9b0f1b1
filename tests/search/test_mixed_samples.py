"""A batch whose samples the loss compares is not split into microbatches unless that is asked for."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from autosbp.api import PlanOptions, load_cluster, make_plan
from autosbp.errors import InfeasibleError
from autosbp.graph.capture import capture
from autosbp.graph.ir import LogicalGraph

pytestmark = pytest.mark.integration

BATCH = 16
CLUSTER = load_cluster("local:2")


class Contrastive(nn.Module):
    """Each sample is to be told from the others of its batch."""

    def __init__(self, compared: bool) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 64))
        self.compared = compared

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layers(x)
        return functional.cross_entropy(y @ y.t(), torch.arange(len(y))) if self.compared else y.square().mean()


def graph_of(compared: bool) -> LogicalGraph:
    return capture(Contrastive(compared), {"x": torch.zeros(4, 64)}, name="model")


def short_of_memory(graph: LogicalGraph) -> int:
    """Bytes that suffice for microbatches, but not for the whole batch."""
    needs = [
        make_plan(graph, CLUSTER, options=PlanOptions(global_batch=4096, micro_batch=size, baselines=())).document
        for size in (4096, 64)
    ]
    whole, parts = (document["memory_bytes_per_device"] for document in needs)
    assert parts < whole
    return int(parts + (whole - parts) // 4)


def test_the_whole_batch_is_one_microbatch_unless_asked() -> None:
    graph = graph_of(compared=True)
    whole = make_plan(graph, CLUSTER, options=PlanOptions(global_batch=BATCH, baselines=()))
    assert whole.strategy.micro_batch == BATCH
    assert whole.document["warnings"] == []
    asked = make_plan(graph, CLUSTER, options=PlanOptions(global_batch=BATCH, micro_batch=4, baselines=()))
    assert asked.strategy.micro_batch == 4
    assert any("combines several samples" in sentence for sentence in asked.document["warnings"])


def test_without_memory_for_the_whole_batch_the_error_says_why_and_what_to_do() -> None:
    graph = graph_of(compared=True)
    limit = short_of_memory(graph)
    with pytest.raises(InfeasibleError, match=r"matmul.* combines several samples.*--micro-batch"):
        make_plan(graph, CLUSTER, options=PlanOptions(global_batch=4096, memory_limit_bytes=limit, baselines=()))


def test_other_losses_are_split_where_memory_is_short() -> None:
    graph = graph_of(compared=False)
    limit = short_of_memory(graph)
    plan = make_plan(graph, CLUSTER, options=PlanOptions(global_batch=4096, memory_limit_bytes=limit, baselines=()))
    assert plan.strategy.micro_batch < 4096
