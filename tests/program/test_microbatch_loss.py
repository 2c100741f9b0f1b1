"""Losses of microbatches against that of the whole batch: what is said of a graph is what torch computes of its module."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from autosbp.graph.capture import capture
from autosbp.program.microbatch_loss import (
    COUNTED,
    MIXED,
    SAME,
    SCALED,
    microbatch_loss_scaling,
    whole_batch_differences,
)

BATCH, MICRO = 8, 2
Loss = Callable[[Tensor, Tensor], Tensor]


class Model(nn.Module):
    """Some numbers a sample, and the loss of these and labels."""

    def __init__(self, loss: Loss, normalised: bool = False) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(6, 4), nn.BatchNorm1d(4) if normalised else nn.Identity()
        self.loss = loss

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """The loss."""
        return self.loss(self.norm(torch.tanh(self.layer(x))), y)


def chosen(h: Tensor, y: Tensor) -> Tensor:
    return h.gather(1, y[:, None]).squeeze(1)


def contrastive(h: Tensor, _y: Tensor) -> Tensor:
    return F.cross_entropy(h @ h.t(), torch.arange(len(h)))


def masked(h: Tensor, y: Tensor) -> Tensor:
    mask = (y > 0).to(h.dtype)
    return (chosen(h, y) * mask).sum() / mask.sum()


def at_least_one(h: Tensor, y: Tensor) -> Tensor:
    mask = (y > 0).to(h.dtype)
    return (chosen(h, y) * mask).sum() / mask.sum().clamp(min=1)


def mean_and_a_little(h: Tensor, y: Tensor) -> Tensor:
    mask = (y > 0).to(h.dtype)
    return (chosen(h, y) * mask).mean() / (mask.mean() + 1e-8)


def shifted(h: Tensor, y: Tensor) -> Tensor:
    target = torch.zeros(len(h), 4, dtype=h.dtype)
    target[:, 1:] = y[:, None].to(h.dtype)
    return ((h - target) ** 2).mean()


def weighted_by_differences(h: Tensor, y: Tensor) -> Tensor:
    positions = torch.stack([y, 2 * y, y * y], 1)
    return (h[:, :3] * positions.diff(dim=1, prepend=positions[:, :1])).mean()


LOSSES: dict[str, tuple[Loss, str]] = {
    "mean": (lambda h, y: (chosen(h, y) ** 2).mean(), SAME),
    "mean of two means": (lambda h, y: h.mean() + 3 * chosen(h, y).exp().mean(), SAME),
    "mean of sums": (lambda h, y: h.sum(1).mean() - chosen(h, y).mean(), SAME),
    "one position of each sample": (lambda h, y: h[torch.arange(len(h)), y].mean(), SAME),
    "labels shifted in place": (shifted, SAME),
    "differences of positions": (weighted_by_differences, SAME),
    "noise of each sample": (lambda h, y: (chosen(h, y) + 0.0 * torch.rand_like(h)[:, 0]).mean(), SAME),
    "labels": (lambda h, y: F.cross_entropy(h, y), COUNTED),
    "some labels": (lambda h, y: F.cross_entropy(h, y, ignore_index=0), COUNTED),
    "masked": (masked, COUNTED),
    "masked, divided by at least 1": (at_least_one, COUNTED),
    "masked, divided by a little more": (mean_and_a_little, COUNTED),
    "sum": (lambda h, y: chosen(h, y).sum(), SCALED),
    "sum of labels": (lambda h, y: F.cross_entropy(h, y, reduction="sum"), SCALED),
    "root": (lambda h, y: (chosen(h, y) ** 2).mean().sqrt(), MIXED),
    "contrastive": (contrastive, MIXED),
    "logsumexp": (lambda h, y: chosen(h, y).logsumexp(0), MIXED),
}


def given() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.tensor([0, 1, 2, 3, 1, 0, 0, 2])  # of the parts 1, 2, 1 and 1 are not 0
    return torch.randn(BATCH, 6, generator=generator, dtype=torch.float64), labels


def compared(module: nn.Module, labels: Tensor) -> float:
    """The mean of the losses of parts, by that of the whole."""
    x, _ = given()
    with torch.no_grad():
        whole = module(x, labels)
        parts = [module(x[at : at + MICRO], labels[at : at + MICRO]) for at in range(0, BATCH, MICRO)]
    return float(torch.stack(parts).mean() / whole)


@pytest.mark.some(3)
@pytest.mark.parametrize("name", LOSSES)
def test_loss_scaling_matches_torch(name: str) -> None:
    loss, kind = LOSSES[name]
    torch.manual_seed(0)
    module = Model(loss).double()
    x, labels = given()
    found = microbatch_loss_scaling(capture(module, {"x": x, "y": labels}, name="model"), BATCH, MICRO)
    assert found.kind == kind
    assert found.exact == (kind != MIXED)
    assert bool(found.denominators) == (kind == COUNTED)
    equal = torch.tensor([0, 1] * (BATCH // 2))
    if kind == SAME:
        assert compared(module, labels) == pytest.approx(1.0)
    elif kind == COUNTED:
        assert compared(module, equal) == pytest.approx(1.0)
        assert name == "labels" or compared(module, labels) != pytest.approx(1.0, rel=1e-3)
    elif kind == SCALED:
        assert compared(module, labels) == pytest.approx(found.share) == pytest.approx(MICRO / BATCH)
    else:
        assert found.op and compared(module, labels) != pytest.approx(1.0, rel=1e-3)


def by_a_parameter(h: Tensor, y: Tensor) -> Tensor:
    return chosen(h, y).sum() / h.exp().sum()


def by_chance(h: Tensor, y: Tensor) -> Tensor:
    return chosen(h, y).sum() / F.dropout((y > 0).to(h.dtype)).sum()


def by_a_parameter_kept_from_0(h: Tensor, y: Tensor) -> Tensor:
    return chosen(h, y).sum() / h.exp().sum().clamp(min=1)


def by_chance_kept_from_0(h: Tensor, y: Tensor) -> Tensor:
    return chosen(h, y).sum() / F.dropout((y > 0).to(h.dtype)).sum().clamp(min=1)


def by_a_quotient(h: Tensor, y: Tensor) -> Tensor:
    known = (y > 0).to(h.dtype)
    return chosen(h, y).sum() / (y.to(h.dtype).sum() / known.sum())


@pytest.mark.parametrize(
    "loss", [by_a_parameter, by_chance, by_a_quotient, by_a_parameter_kept_from_0, by_chance_kept_from_0]
)
def test_data_dependent_denominators_are_reported_as_different(loss: Loss) -> None:
    x, labels = given()
    graph = capture(Model(loss).double(), {"x": x, "y": labels}, name="model")
    found = microbatch_loss_scaling(graph, BATCH, MICRO)
    assert not found.exact
    assert len(whole_batch_differences(graph, BATCH, MICRO)) == 1
    assert whole_batch_differences(graph, BATCH, BATCH) == []


def test_a_denominator_used_other_than_as_divisor_is_not_recognized() -> None:
    def added(h: Tensor, y: Tensor) -> Tensor:
        return at_least_one(h, y) + 1e-3 * h.sum() * (y > 0).sum().clamp(min=1)

    x, labels = given()
    found = microbatch_loss_scaling(capture(Model(added).double(), {"x": x, "y": labels}, name="model"), BATCH, MICRO)
    assert (found.kind, found.exact) == (MIXED, False)


def test_means_over_different_labels_are_both_recognized() -> None:
    def both(h: Tensor, y: Tensor) -> Tensor:
        return masked(h, y) + F.cross_entropy(h, y, ignore_index=1) - h.mean()

    x, labels = given()
    graph = capture(Model(both).double(), {"x": x, "y": labels}, name="model")
    found = microbatch_loss_scaling(graph, BATCH, MICRO)
    assert (found.kind, found.exact, len(found.denominators)) == (COUNTED, True, 2)
    assert whole_batch_differences(graph, BATCH, MICRO) == []


def test_normalisation_over_the_batch_sees_a_microbatch_at_a_time() -> None:
    x, labels = given()
    module = Model(LOSSES["mean"][0], normalised=True).double().train()
    graph = capture(module, {"x": x, "y": labels}, name="model")
    assert microbatch_loss_scaling(graph, BATCH, MICRO).kind == MIXED
    assert microbatch_loss_scaling(graph, BATCH, BATCH).kind == SAME
