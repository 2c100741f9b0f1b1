"""Branches on values: checks that only raise are left out and noted, constants are evaluated, others are refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from autosbp.errors import UnsupportedError
from autosbp.graph.capture import capture
from autosbp.graph.huggingface import capture_hf_config
from autosbp.graph.ir import LogicalGraph
from tests.graph import guards_for_tests as guards
from tests.graph.numerics import assert_same, weights

pytestmark = pytest.mark.integration

Tensor = torch.Tensor


class Guarded(nn.Module):
    def __init__(self, body: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.linear, self.body = nn.Linear(6, 4), body

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.body(self.linear(x), labels), labels)


def inputs(batch: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(batch)
    labels = torch.randint(0, 4, (batch,), generator=generator)
    return {"x": torch.randn(batch, 6, generator=generator, dtype=torch.float64), "labels": labels}


def captured(body: Callable[[Tensor, Tensor], Tensor]) -> LogicalGraph:
    module = Guarded(body).double()
    weights(module)
    graph = capture(module, inputs(4), name="guarded")
    for batch in (2, 5):
        assert_same(graph, module, inputs(batch))
    return graph


@pytest.mark.parametrize("body", [guards.raises_if, guards.asserts])
def test_checks_that_only_raise_are_left_out_and_noted(body: Callable[[Tensor, Tensor], Tensor]) -> None:
    graph = captured(body)
    assert "left out, taken to pass: guards_for_tests.py, line" in graph.provenance["value_checks"]
    assert not any(".max." in node.op or ".all." in node.op for node in graph.nodes)


def test_branches_on_constants_are_those_of_the_module() -> None:
    assert "value_checks" not in captured(guards.constant_branch).provenance


@pytest.mark.parametrize("body", [guards.two_ways, guards.raises_else])
def test_a_branch_on_data_is_refused_with_its_line(body: Callable[[Tensor, Tensor], Tensor]) -> None:
    with pytest.raises(UnsupportedError, match=r"guards_for_tests.py, line \d+ \((return|if not).*dense form"):
        captured(body)


def test_a_check_of_labels_in_transformers_is_left_out() -> None:
    config = {
        "model_type": "wav2vec2", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 32,
        "intermediate_size": 48, "conv_dim": [16, 16], "conv_kernel": [10, 3], "conv_stride": [5, 2],
        "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2,
        "architectures": ["Wav2Vec2ForCTC"],
    }  # fmt: skip
    graph = capture_hf_config(config)
    assert "left out, taken to pass: modeling_wav2vec2.py, line" in graph.provenance["value_checks"]
    assert not any(".max." in node.op for node in graph.nodes)
