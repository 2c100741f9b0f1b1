"""Cross-entropy over split classes, from logits to gradients, with ignored labels: right, and two small collectives."""

from __future__ import annotations

import pytest

from autosbp.api import load_cluster
from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.network import NetworkModel
from autosbp.executor.training import random_batch
from autosbp.plan.plan import Strategy
from autosbp.sbp.mesh import Mesh
from autosbp.search import SEARCHERS, SearchOptions
from autosbp.search.problem.builder import ProblemBuilder
from autosbp.search.problem.op_clusters import OpCluster
from autosbp.search.problem.strategy import strategy_of
from autosbp.testing.virtual import plain_mesh
from autosbp.testing.virtual_program import check_strategy
from tests.executor.split_ops.heads import classification

CLASSES, BATCH, IGNORED = 12, 16, 2
FACTORS = {
    "batch": {"logits": "b0", "loss.0": "d0", "loss.4": "d0"},
    "classes": {"logits": "n", "loss.0": "d1", "loss.4": "g"},
}
GRAPH = classification(CLASSES, 8, ignore=IGNORED, dtype="float64")


def with_factors(mesh: Mesh, factors: tuple[str, ...]) -> Strategy:
    """The cheapest strategy that splits batch or classes from the logits to the picked ones, one per axis."""
    bound = GRAPH.bind(batch=BATCH)
    cluster = load_cluster("local:4")
    boxing = BoxingModel(NetworkModel(cluster), mesh)
    builder = ProblemBuilder(bound, boxing, ComputeModel(cluster.device), num_micro=1, optimizer="sgd")

    def allowed(op_cluster: OpCluster, axis: int, option: int) -> bool:
        chosen = zip(op_cluster.nodes, op_cluster.options[option], strict=True)
        return all(choice.factor == FACTORS[factors[axis]].get(node.name, choice.factor) for node, choice in chosen)

    built = builder.build(None, allowed)
    found = SEARCHERS["exact"](built.problem, SearchOptions())
    return strategy_of(built, found.assignment, bound, boxing, global_batch=BATCH, micro_batch=BATCH, optimizer="sgd")


@pytest.mark.parametrize(("sizes", "factors", "softmax"), [
    ((4,), ("classes",), "S1 -> S1"),
    ((2, 2), ("classes", "classes"), "S1,S1 -> S1,S1"),
    ((2, 2), ("batch", "classes"), "S0,S1 -> S0,S1"),
    ((2, 2), ("classes", "batch"), "S1,S0 -> S1,S0"),
], ids=["classes 4", "classes 2x2", "batch x classes", "classes x batch"])  # fmt: skip
def test_split_classes_give_the_loss_and_gradients_of_one_device(
    sizes: tuple[int, ...], factors: tuple[str, ...], softmax: str
) -> None:
    strategy = with_factors(plain_mesh(*sizes), factors)
    assert str(strategy.signatures["loss.0"]) == softmax
    assert IGNORED in random_batch(GRAPH, BATCH, 1)["labels"]
    issued = check_strategy(GRAPH, strategy)
    rows = BATCH // (2 if "batch" in factors else 1)
    group = 2 if "batch" in factors else 4
    small = [(call.kind, call.num_bytes) for call in issued[0] if call.num_bytes <= group * 2 * rows * 8]
    # Maxima and sums together, the picked log-probabilities as one number; backward one number a row.
    assert ("all_gather", group * 2 * rows * 8) in small
    assert ("all_reduce", rows * 8) in small
    assert all(call.num_bytes < BATCH * CLASSES * 8 for call in issued[0]), "logits are never sent"
