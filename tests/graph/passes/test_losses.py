"""Means and losses as sums over counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from autosbp.graph.capture import build_on_meta, capture
from autosbp.graph.ir import Node, Sym
from autosbp.graph.passes import canonicalise
from autosbp.graph.passes._losses import explicit_cross_entropy
from autosbp.graph.passes._means import explicit_means
from tests.graph.passes.harness import BATCH, LABELS, LINEAR, Head, Shape, W, X, captured, check, graph_of, node, ops

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    ("op", "args", "shape", "count"),
    [
        ("mean.dim", ((-1,), True), ("batch", 3, 1), 6.0),
        ("mean.dim", ((1, 2),), ("batch",), 18.0),
        ("mean.dim", ((0,),), (3, 6), BATCH),
        ("mean.default", (), (), Sym("batch*3*6")),
    ],
)
def test_a_mean_is_a_sum_over_its_count(op: str, args: tuple[Any, ...], shape: Shape, count: Any) -> None:
    graph = graph_of([LINEAR, node("mean", op, "@y", *args, shape=shape)], W, X)
    tail = [] if shape == () else ["sum.default"]
    changed = check(graph, explicit_means, ["linear.default", "sum.dim_IntList", "div.Tensor", *tail])
    assert changed.nodes[2].args[1] == count


def cross_entropy(logits: str, labels: str, *args: Any) -> Node:
    return node("loss", "cross_entropy_loss.default", logits, labels, *args, shape=())


FLATTENED = [
    LINEAR,
    node("rows", "reshape.default", "@y", (Sym("3*batch"), 6), shape=("3*batch", 6)),
    node("ids", "reshape.default", "@labels", (Sym("3*batch"),), shape=("3*batch",), dtype="int64"),
]
CLASSES_SECOND = [LINEAR, node("turned", "permute.default", "@y", (0, 2, 1), shape=("batch", 6, 3))]


@pytest.mark.parametrize("rest", [(), (None, 1, -100, 0.0), (None, 1, 2), (None, 2, 2)])
@pytest.mark.parametrize(
    ("nodes", "logits", "labels"), [(FLATTENED, "@rows", "@ids"), (CLASSES_SECOND, "@turned", "@labels")]
)
def test_cross_entropy_is_written_with_its_count(
    nodes: list[Node], logits: str, labels: str, rest: tuple[Any, ...]
) -> None:
    graph = graph_of([*nodes, cross_entropy(logits, labels, *rest)], W, LABELS)
    changed = explicit_cross_entropy(graph)
    check(graph, explicit_cross_entropy, ops(changed))
    picked = next(each for each in changed.nodes if each.op == "aten.gather.default")
    assert picked.outputs[0].shape == ("batch", 3, 1)
    assert ("div.Tensor" in ops(changed)) == (rest[1:2] != (2,))


def test_canonical_graphs_do_not_change_again() -> None:
    graph = canonicalise(graph_of([*FLATTENED, cross_entropy("@rows", "@ids")], W, LABELS))
    assert canonicalise(graph) == graph


WEIGHTS = torch.tensor([0.5, 1.0, 2.0, 0.25, 1.5, 3.0], dtype=torch.float64)


def kept(labels: torch.Tensor) -> torch.Tensor:
    return labels.clamp(min=0)


def soft(labels: torch.Tensor) -> torch.Tensor:
    return F.one_hot(kept(labels), 6).double() * 0.7 + 0.05


LOSSES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "classes last": lambda y, t: F.cross_entropy(y.reshape(-1, 6), t.reshape(-1)),
    "classes second": lambda y, t: F.cross_entropy(y.transpose(1, 2), t),
    "class weights": lambda y, t: F.cross_entropy(y.flatten(0, 1), t.flatten(), weight=WEIGHTS),
    "smoothing": lambda y, t: F.cross_entropy(y.flatten(0, 1), t.flatten(), label_smoothing=0.1),
    "smoothing, sum": lambda y, t: F.cross_entropy(y.transpose(1, 2), t, label_smoothing=0.1, reduction="sum"),
    "weights and smoothing": lambda y, t: F.cross_entropy(
        y.flatten(0, 1), t.flatten(), weight=WEIGHTS, label_smoothing=0.1
    ),
    "no reduction": lambda y, t: (F.cross_entropy(y.transpose(1, 2), t, reduction="none") ** 2).mean(),
    "no reduction, all": lambda y, t: (
        F.cross_entropy(y.transpose(1, 2), t, weight=WEIGHTS, label_smoothing=0.1, reduction="none") ** 2
    ).sum(),
    "probabilities": lambda y, t: F.cross_entropy(y.transpose(1, 2), soft(t).transpose(1, 2)),
    "probabilities, all": lambda y, t: F.cross_entropy(
        y.flatten(0, 1), soft(t).flatten(0, 1), weight=WEIGHTS, label_smoothing=0.1
    ),
    "probabilities, no reduction": lambda y, t: (
        F.cross_entropy(y.flatten(0, 1), soft(t).flatten(0, 1), reduction="none") ** 2
    ).sum(),
    "nll": lambda y, t: F.nll_loss(y.flatten(0, 1).log_softmax(-1), kept(t).flatten(), WEIGHTS, ignore_index=2),
    "nll of pixels": lambda y, t: F.nll_loss(y.log_softmax(-1).transpose(1, 2), t),
    "mse": lambda y, t: F.mse_loss(y, soft(t)),
    "mse, sum": lambda y, t: F.mse_loss(y, soft(t), reduction="sum"),
    "l1": lambda y, t: F.l1_loss(y, soft(t)),
    "smooth l1": lambda y, t: F.smooth_l1_loss(y, soft(t), beta=0.3),
    "huber": lambda y, t: F.huber_loss(y, soft(t), delta=0.3),
    "bce": lambda y, t: F.binary_cross_entropy(y.sigmoid(), soft(t), weight=WEIGHTS),
    "bce with logits": lambda y, t: F.binary_cross_entropy_with_logits(y, soft(t), pos_weight=WEIGHTS),
    "kl": lambda y, t: F.kl_div(y.log_softmax(-1), soft(t), reduction="batchmean"),
    "kl, log target": lambda y, t: torch.kl_div(y.log_softmax(-1), soft(t).log(), 1, log_target=True),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_the_modules_and_has_no_mean_left(name: str) -> None:
    graph = captured(Head(LOSSES[name]))
    assert not [each for each in graph.nodes if each.op.split(".")[1] in ("mean", "cross_entropy_loss", "nll_loss_nd")]
    losses = [each for each in graph.nodes if each.op.split(".")[1].endswith(("_loss", "_div", "_logits", "_entropy"))]
    assert all(0 in each.args for each in losses)


def test_half_precision_counts_and_sums_stay_wide() -> None:
    build = lambda: Head(lambda y, t: F.cross_entropy(y.flatten(0, 1), t.flatten()) + y.mean())  # noqa: E731
    inputs = {"x": torch.zeros(2, 3, 8, dtype=torch.bfloat16), "labels": torch.zeros(2, 3, dtype=torch.int64)}
    graph = capture(build_on_meta(build, torch.bfloat16), inputs, name="half")
    wide = [each.outputs[0].dtype for each in graph.nodes if each.op.startswith(("aten.sum", "aten.div"))]
    assert set(wide) == {"float32"}
    assert graph.meta(graph.loss).dtype == "bfloat16"
