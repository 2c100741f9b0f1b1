"""Ranges of integer inputs that a model implies: random batches draw labels of all classes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as in torch's documentation
from torch import Tensor, nn

from autosbp.executor.training import random_batch
from autosbp.graph.capture import capture
from autosbp.graph.index_bounds import check_bounds
from autosbp.graph.ir import LogicalGraph

CLASSES = 10
Loss = Callable[[Tensor, Tensor], Tensor]


class Classifier(nn.Module):
    def __init__(self, loss: Loss) -> None:
        super().__init__()
        self.head, self.loss = nn.Linear(8, CLASSES), loss

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.loss(self.head(x), y)


def graph_of(loss: Loss, example: Tensor | None = None) -> LogicalGraph:
    labels = torch.zeros(4, dtype=torch.long) if example is None else example
    return capture(Classifier(loss), {"x": torch.randn(4, 8), "y": labels}, name="classifier")


LOSSES: dict[str, tuple[Loss, int]] = {
    "cross entropy": (lambda z, y: F.cross_entropy(z, y), CLASSES),
    "clamped from below": (lambda z, y: F.cross_entropy(z, y.clamp(min=0)), CLASSES),
    "padding replaced": (lambda z, y: F.cross_entropy(z, torch.where(y == -100, 0, y)), CLASSES),
    "padding masked": (lambda z, y: F.cross_entropy(z, y * (y >= 0)), CLASSES),
    "labels from one": (lambda z, y: F.cross_entropy(z, y - 1, ignore_index=-1), CLASSES + 1),
    "compared with all classes": (lambda z, y: ((y[:, None] == torch.arange(CLASSES)) * z).mean(), CLASSES),
    "compared with one class": (lambda z, y: F.relu(1 + z.sum(-1) * (y == 3)).mean(), 4),
}


@pytest.mark.parametrize("name", LOSSES)
def test_labels_are_drawn_from_all_classes(name: str) -> None:
    loss, high = LOSSES[name]
    graph = graph_of(loss)
    assert graph.inputs[1].high == high
    assert random_batch(graph, 512, 0)["y"].unique().tolist() == list(range(high))


def test_labels_of_no_known_range_are_drawn_from_that_of_the_example() -> None:
    def loss(z: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(z.sum(-1), y.float())

    assert graph_of(loss).inputs[1].high is None
    assert graph_of(loss, torch.tensor([0, 1, 6, 2])).inputs[1].high == 7


def test_an_input_above_a_guarded_index_is_no_mistake() -> None:
    graph = capture(
        Classifier(lambda z, y: F.cross_entropy(z, y.clamp(0, CLASSES - 1))),
        {"x": torch.randn(4, 8), "y": torch.zeros(4, dtype=torch.long)},
        name="clamped",
        input_high={"y": 100},
    )
    assert graph.inputs[1].high == 100
    check_bounds(graph)
