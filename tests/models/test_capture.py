"""Every kind of model: the captured graph gives the loss and the gradients of transformers' own module."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from autosbp.executor.training import random_batch
from autosbp.graph.huggingface import capture_hf_config
from autosbp.graph.huggingface._classes import training_class
from autosbp.graph.huggingface._config import read_config
from tests.graph.numerics import Double, assert_same, weights
from tests.models.configs import CONFIGS, SIZES

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.some(3)
def test_loss_and_gradients_of_the_graph_are_those_of_the_module(name: str) -> None:
    config: dict[str, Any] = {**CONFIGS[name], "dtype": "float64"}
    with Double():
        graph = capture_hf_config(config, **SIZES.get(name, {"seq_len": 32}))
        hf_config = read_config(config)
        torch.manual_seed(0)
        module = training_class(hf_config, config).cls._from_config(hf_config, dtype=torch.float64).train()
        weights(module)
        if hasattr(module, "set_experts_implementation"):
            module.set_experts_implementation("eager")
        assert_same(graph, module, random_batch(graph, 3, seed=5))
