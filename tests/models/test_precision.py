"""Models of every kind in mixed precision: the loss and the gradient of full precision, within its rounding."""

from __future__ import annotations

import pytest
import torch

from autosbp.executor.parameter_shards import initial_parameters, make_trainable
from autosbp.executor.training import random_batch
from autosbp.graph.ir import LogicalGraph
from autosbp.graph.precision import in_precision
from autosbp.graph.to_fx import check_shapes, to_graph_module
from tests.models.conftest import MODELS, graph_of

pytestmark = pytest.mark.integration

SAMPLES = 2


def loss_and_gradient(graph: LogicalGraph) -> tuple[float, float]:
    """The loss, and the norm of the gradient of all parameters."""
    bound = graph.bind(**dict.fromkeys(graph.symbols, SAMPLES))
    values, batch = initial_parameters(graph, seed=1), random_batch(graph, SAMPLES, seed=2)
    trained = [make_trainable(values[leaf.name], leaf) for leaf in graph.parameters]
    torch.manual_seed(0)
    loss = to_graph_module(bound)(*trained, *(batch[leaf.name] for leaf in bound.inputs))
    loss.backward()
    norms = [float(each.grad.double().norm()) for each in trained if each.grad is not None]
    return float(loss.detach()), sum(norm**2 for norm in norms) ** 0.5


@pytest.mark.some(3)
@pytest.mark.parametrize("model", MODELS)
def test_mixed_precision_trains_the_same_model(model: str) -> None:
    full, mixed = graph_of(model), in_precision(graph_of(model), "bf16-mixed")
    check_shapes(mixed.bound_at_capture)
    (loss, gradient), (rounded, rounded_gradient) = map(loss_and_gradient, (full, mixed))
    assert rounded == pytest.approx(loss, rel=5e-3)
    assert rounded_gradient == pytest.approx(gradient, rel=2e-2)
