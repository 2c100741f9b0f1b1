"""A capture is compared with the module itself: what torch.export does not see is an error that names a parameter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from autosbp.api import PlanOptions, capture_hf_config, capture_module, load_cluster, make_plan
from autosbp.errors import UnsupportedError
from autosbp.graph import module_check
from autosbp.graph.ir import LogicalGraph
from tests.graph import functions_for_tests as functions

pytestmark = pytest.mark.integration

Tensor = torch.Tensor


class Hidden(nn.Module):
    """Two layers, with something between them."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.one, self.two, self.between = nn.Linear(6, 8), nn.Linear(8, 4), between

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.between(self.one(x))).square().mean()


def with_hook(hidden: Tensor) -> Tensor:
    """A gradient that a hook scales, which torch.export does not see."""
    hidden = hidden * 1.0
    if hidden.requires_grad and not torch.compiler.is_exporting():
        hidden.register_hook(lambda gradient: 3.0 * gradient)  # type: ignore[no-untyped-call]
    return hidden


def traced_otherwise(hidden: Tensor) -> Tensor:
    return hidden.relu() if torch.compiler.is_exporting() else hidden.tanh()


def check_of(module: nn.Module, **options: Any) -> str:
    return capture_module(module, {"x": torch.zeros(4, 6)}, name="model", **options).provenance["checked"]


def test_a_capture_says_that_it_equals_the_module() -> None:
    assert check_of(Hidden(torch.tanh)) == "loss and 4 gradients equal the module's (float64)"


def test_a_lost_gradient_is_an_error_that_names_the_parameter_and_the_difference() -> None:
    with pytest.raises(UnsupportedError, match=r"gradient of one\.weight differs by [\d.e-]+ where .* up to [\d.e-]+"):
        check_of(Hidden(with_hook))


def test_another_loss_is_an_error_with_both_values() -> None:
    with pytest.raises(UnsupportedError, match=r"its loss is [\d.e-]+, the module's [\d.e-]+"):
        check_of(Hidden(traced_otherwise))


def test_the_check_can_be_left_out() -> None:
    assert check_of(Hidden(with_hook), check=False) == "not checked against the module, as asked"


def test_a_plan_says_how_its_graph_was_checked() -> None:
    graph = capture_module(Hidden(torch.tanh), {"x": torch.zeros(4, 6)}, name="model")
    plan = make_plan(graph, load_cluster("local:2"), options=PlanOptions(global_batch=8, baselines=()))
    assert plan.document["provenance"]["graph_check"] == graph.provenance["checked"]


@pytest.mark.parametrize(("name", "value"), [("MAX_FLOPS", 10.0), ("MEMORY_SHARE", 1e-12)])
def test_a_module_that_is_too_large_is_not_checked_and_says_why(
    name: str, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module_check, name, value)
    assert check_of(Hidden(with_hook)).startswith("not checked against the module: ")


def test_a_module_that_takes_certain_inputs_only_is_checked_on_those() -> None:
    def logarithm(hidden: Tensor) -> Tensor:
        return hidden

    class Entropy(Hidden):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.sqrt().log() + (1 - x).log())

    assert check_of(Entropy(logarithm)) == "loss and 4 gradients equal the module's (float64)"


def test_a_module_that_no_drawn_input_suits_is_captured_and_says_so() -> None:
    class Strict(Hidden):
        def forward(self, x: Tensor) -> Tensor:
            if not torch.compiler.is_exporting() and bool((x != 7).any()):
                raise ValueError("sevens are expected")
            return super().forward(x)

    assert "fails on random inputs (ValueError: sevens are expected)" in check_of(Strict(torch.tanh))


def test_the_check_leaves_the_module_and_the_random_state_alone() -> None:
    module = Hidden(torch.tanh)
    before = {name: each.clone() for name, each in module.state_dict().items()}
    torch.manual_seed(3)
    wanted = torch.rand(1)
    torch.manual_seed(3)
    check_of(module)
    assert torch.equal(torch.rand(1), wanted)
    assert all(torch.equal(before[name], each) for name, each in module.state_dict().items())
    assert all(each.grad is None for each in module.parameters())


def test_dropout_is_drawn_alike() -> None:
    assert check_of(Hidden(nn.Dropout(0.5))) == "loss and 4 gradients equal the module's (float64)"


def test_tables_that_capture_folds_in_float32_are_compared_in_float32() -> None:
    def angles(hidden: Tensor) -> Tensor:
        return hidden * (torch.arange(8, dtype=torch.float32) * 1000.1).sin()

    assert check_of(Hidden(angles)) == "loss and 4 gradients equal the module's (its own dtypes)"


def mixtral(**fields: Any) -> LogicalGraph:
    config = {
        "model_type": "mixtral", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "vocab_size": 32,
        "num_attention_heads": 2, "num_key_value_heads": 2, "num_local_experts": 4, **fields,
    }  # fmt: skip
    return capture_hf_config(config, seq_len=8)


def test_experts_are_compared_with_those_of_transformers() -> None:
    graph = mixtral()
    assert any(node.op == "autosbp.experts.default" for node in graph.nodes)
    assert "gradients equal the module's" in graph.provenance["checked"]


def test_bfloat16_is_compared_too() -> None:
    assert "gradients equal the module's" in mixtral(dtype="bfloat16").provenance["checked"]


def test_functions_with_their_own_backward_are_compared() -> None:
    module, example = functions.factory()
    assert "4 gradients equal" in capture_module(module, example, name="model").provenance["checked"]
