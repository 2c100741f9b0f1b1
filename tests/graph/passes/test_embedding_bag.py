"""Bags of embeddings equal torch's; bags of several lengths are refused by name and line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from autosbp.api import PlanOptions, load_cluster, make_plan
from autosbp.errors import UnsupportedError
from autosbp.graph.capture import build_on_meta, capture
from autosbp.sbp.rules import check_graph
from tests.graph.numerics import assert_same, weights

pytestmark = pytest.mark.integration

Tensor = torch.Tensor


class Bags(nn.Module):
    def __init__(self, body: Callable[[nn.EmbeddingBag, Tensor, Tensor], Tensor], **options: Any) -> None:
        super().__init__()
        self.bag, self.body = nn.EmbeddingBag(16, 6, **options), body

    def forward(self, ids: Tensor, x: Tensor) -> Tensor:
        return self.body(self.bag, ids, x).square().sum()


def matrix(bag: nn.EmbeddingBag, ids: Tensor, _: Tensor) -> Tensor:
    out: Tensor = bag(ids)
    return out


def weighted(bag: nn.EmbeddingBag, ids: Tensor, x: Tensor) -> Tensor:
    out: Tensor = bag(ids, per_sample_weights=x)
    return out


def offsets(bag: nn.EmbeddingBag, ids: Tensor, _: Tensor) -> Tensor:
    out: Tensor = bag(ids.flatten(), torch.arange(ids.shape[0]) * 5)
    return out


def ends(bag: nn.EmbeddingBag, ids: Tensor, _: Tensor) -> Tensor:
    out: Tensor = bag(ids.flatten(), torch.arange(ids.shape[0] + 1) * 5)
    return out


CASES: dict[str, Callable[[], nn.Module]] = {
    "mean": lambda: Bags(matrix),
    "sum": lambda: Bags(matrix, mode="sum"),
    "max": lambda: Bags(matrix, mode="max"),
    "mean with padding": lambda: Bags(matrix, padding_idx=3),
    "sum with padding": lambda: Bags(matrix, mode="sum", padding_idx=3),
    "max with padding": lambda: Bags(matrix, mode="max", padding_idx=3),
    "weights": lambda: Bags(weighted, mode="sum"),
    "weights and padding": lambda: Bags(weighted, mode="sum", padding_idx=3),
    "offsets": lambda: Bags(offsets),
    "offsets with the last": lambda: Bags(ends, include_last_offset=True),
}


def inputs(batch: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(batch)
    ids = torch.randint(0, 16, (batch, 5), generator=generator)
    ids[0], ids[1, :2] = 3, 3  # a bag of nothing but padding
    return {"ids": ids, "x": torch.randn(batch, 5, generator=generator, dtype=torch.float64)}


@pytest.mark.parametrize("name", CASES)
def test_bags_of_equal_length_give_the_gradients_of_torch(name: str) -> None:
    graph = capture(build_on_meta(CASES[name], torch.float64), inputs(3), name=name)
    check_graph(graph)
    module = CASES[name]().double()
    weights(module)
    for batch in (2, 5):
        assert_same(graph, module, inputs(batch))


def test_bags_are_planned() -> None:
    graph = capture(CASES["mean"](), inputs(3), name="bags")
    plan = make_plan(graph, load_cluster("local:2"), options=PlanOptions(global_batch=8, baselines=()))
    assert plan.document["step_time_s"] > 0


@pytest.mark.parametrize(
    "module",
    [
        Bags(lambda bag, ids, _: bag(ids.flatten(), ids[:, 0])),
        Bags(lambda bag, ids, _: bag(ids.flatten(), torch.arange(ids.shape[0]) ** 2)),
        Bags(matrix, scale_grad_by_freq=True),
    ],
)
def test_other_bags_are_refused_with_what_to_do(module: nn.Module) -> None:
    with pytest.raises(UnsupportedError, match=r"embedding_bag.*test_embedding_bag.py.*a matrix of indices"):
        capture(module, inputs(3), name="bags")
