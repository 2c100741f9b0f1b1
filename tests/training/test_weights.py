"""Initial weights of a parallel module."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from autosbp.api import capture_module
from autosbp.errors import InputError
from autosbp.graph.ir import LogicalGraph
from autosbp.training.weights import WholeParameters, module_tensors, weight_tensors
from tests.training.user_model import LanguageModel, example


@pytest.fixture(scope="module")
def graph() -> LogicalGraph:
    return capture_module(LanguageModel(), example(), name="language-model")


def test_the_modules_own_values_are_the_default(graph: LogicalGraph) -> None:
    module = LanguageModel()
    whole = WholeParameters(graph, module_tensors(module, 0))
    own = dict(module.named_parameters())
    assert set(whole) == set(own)
    assert all(torch.equal(whole[name], own[name]) for name in whole)


def test_a_safetensors_file_takes_the_place_of_the_modules_values(graph: LogicalGraph, tmp_path: Path) -> None:
    other = {name: torch.randn_like(each) for name, each in LanguageModel().named_parameters()}
    save_file(other, tmp_path / "weights.safetensors")
    whole = WholeParameters(graph, weight_tensors(tmp_path / "weights.safetensors"))
    assert all(torch.equal(whole[name], other[name]) for name in whole)


def test_meta_parameters_get_the_same_values_in_any_order_and_those_of_their_layer(graph: LogicalGraph) -> None:
    with torch.device("meta"):
        module = LanguageModel()
    names = list(WholeParameters(graph, {}))
    ahead, back = (WholeParameters(graph, module_tensors(module, 5)) for _ in range(2))
    values = {name: ahead[name] for name in names}
    assert all(torch.equal(back[name], values[name]) for name in reversed(names))
    assert torch.equal(values["blocks.0.norm.weight"], torch.ones(32))
    assert float(values["blocks.0.up.weight"].abs().max()) <= 32**-0.5  # as nn.Linear initialises
    assert not torch.equal(values["blocks.0.up.weight"], values["blocks.1.up.weight"])
    assert all(each.is_meta for each in module.parameters())


def test_weights_that_lack_a_parameter_or_have_another_shape_are_refused(graph: LogicalGraph) -> None:
    own = dict(LanguageModel().named_parameters())
    with pytest.raises(InputError, match="blocks.0.up.bias"):
        WholeParameters(graph, {name: each for name, each in own.items() if name != "blocks.0.up.bias"})[
            "blocks.0.up.bias"
        ]
    with pytest.raises(InputError, match=r"\(128,\)"):
        WholeParameters(graph, own | {"blocks.0.up.bias": torch.zeros(7)})["blocks.0.up.bias"]


def test_a_layer_that_cannot_initialise_itself_is_named() -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3, device="meta"))

    with pytest.raises(InputError, match="Scale has no reset_parameters"):
        module_tensors(Scale(), 0)["scale"]


def test_a_file_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no.safetensors"):
        weight_tensors(tmp_path / "no.safetensors")
