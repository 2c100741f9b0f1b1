"""Models of the zoo that two cores train: the graph's loss and gradients are the module's."""

from __future__ import annotations

import pytest
import torch

from autosbp.executor.training import random_batch
from autosbp.graph.capture import capture
from autosbp.graph.dtype_cast import cast_floats
from autosbp.zoo import models, zoo_graph
from autosbp.zoo.catalog import ModuleEntry, read_catalog
from tests.graph.numerics import Double, assert_same, weights

pytestmark = pytest.mark.integration

SMALL = sorted(name for name, entry in read_catalog().items() if isinstance(entry, ModuleEntry) and "-small" in name)


@pytest.mark.some(3)
@pytest.mark.parametrize("name", SMALL)
def test_capture_equals_eager(name: str) -> None:
    entry = read_catalog()[name]
    assert isinstance(entry, ModuleEntry)
    module = getattr(models, entry.module)(**entry.arguments).double()
    weights(module)
    batch = random_batch(cast_floats(zoo_graph(name), "float32", "float64"), 6, seed=3)
    graph = capture(module, batch, name=name, input_high=entry.high)
    with Double():
        assert_same(graph, module, batch)


def test_tokens_beyond_an_experts_slots_are_dropped() -> None:
    torch.manual_seed(0)
    layer = models.MoETransformer(64, 8, 1, 16, 32, 2, experts=2, capacity=0.25).blocks[0].mixture
    layer.gate.weight.data.zero_()[0] = 1.0
    layer.gate.weight.data[1] = 0.5  # every token prefers expert 0 to expert 1
    tokens = torch.rand(3, 8, 16)
    mixed, _ = layer(tokens)
    kept = layer.slots
    assert kept == 2
    assert (mixed[:, :kept].abs().sum(-1) > 0).all()
    assert (mixed[:, kept:] == 0).all()


def test_a_mixture_weighs_two_experts_as_its_gate_says() -> None:
    torch.manual_seed(0)
    layer = models.MoETransformer(64, 8, 1, 16, 32, 2, experts=4, capacity=4.0).blocks[0].mixture
    tokens = torch.randn(3, 8, 16)
    gates = torch.softmax(tokens @ layer.gate.weight.T, -1)
    values, chosen = gates.topk(2, -1)
    outputs = torch.relu(torch.einsum("gsm,emh->gseh", tokens, layer.up))
    outputs = torch.einsum("gseh,ehm->gsem", outputs, layer.down)
    picked = outputs.gather(2, chosen[..., None].expand(-1, -1, -1, 16))
    wanted = (picked * (values / values.sum(-1, keepdim=True))[..., None]).sum(2)
    torch.testing.assert_close(layer(tokens)[0], wanted)


def test_the_margin_is_taken_off_the_labels_cosine_alone() -> None:
    torch.manual_seed(0)
    head = models.FaceRecognizer([1], 8, 16, 10).head
    x, labels = torch.randn(4, 16), torch.tensor([0, 3, 9, 3])
    cosines = torch.nn.functional.cosine_similarity(x[:, None], head.weight[None], dim=-1)
    margins = 0.4 * torch.nn.functional.one_hot(labels, 10)
    torch.testing.assert_close(head(x, labels), 64 * (cosines - margins))
