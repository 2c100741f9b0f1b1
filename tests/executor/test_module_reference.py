"""Trials compare with the model's own module: equal steps from equal weights, through every transform of parameters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from autosbp.api import PlanOptions, load_cluster, make_plan
from autosbp.cli._module_losses import compare_with_module
from autosbp.executor.module_reference import module_losses
from autosbp.executor.parameter_shards import initial_parameters
from autosbp.executor.single_device_reference import SingleDeviceReference
from autosbp.executor.training import random_batch
from autosbp.graph.capture import capture
from autosbp.graph.ir import LogicalGraph
from autosbp.graph.module_check import ModuleCall
from autosbp.graph_sources import load_model

pytestmark = pytest.mark.integration

FACTORY = "tests.graph.functions_for_tests:factory"


class Attention(nn.Module):
    """Fused projections, by slices and by blocks of heads, of which capture makes parameters of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        self.grouped = nn.Linear(8, 16)
        self.back = nn.Parameter(torch.zeros(8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        one, two = self.grouped(x).unflatten(-1, (2, 2, 4)).unbind(-2)
        y = (q @ k.transpose(1, 2)).softmax(-1) @ v + (one * two).flatten(-2).repeat(1, 1, 1) @ self.back
        return self.out(y).square().mean()


def reference_losses(graph: LogicalGraph, batch: int, steps: int) -> list[float]:
    reference = SingleDeviceReference(graph, initial_parameters(graph, 5), global_batch=batch)
    values = random_batch(graph, batch, 5)
    return [float(reference.step(values)) for _ in range(steps)]


def test_steps_of_the_module_are_those_of_its_graph() -> None:
    module = Attention()
    example = {"x": torch.zeros(4, 3, 8)}
    graph = capture(module, example, name="attention")
    assert {step[0] for leaf in graph.parameters for step in leaf.transforms} >= {"slice"}
    found = module_losses(
        ModuleCall(module, example, {}, {}), graph, global_batch=6, optimizer="adamw", seed=5, steps=3
    )
    assert found == pytest.approx(reference_losses(graph, 6, 3), rel=1e-5)
    assert len(set(found)) == 3


def test_a_trial_of_a_factory_says_how_it_differs_from_the_module() -> None:
    graph = load_model(FACTORY)
    plan = make_plan(graph, load_cluster("local:2"), options=PlanOptions(global_batch=8, baselines=()))
    alone = reference_losses(graph, 8, 2)
    result: dict[str, Any] = {"losses": [*alone, 0.0], "reference_losses": alone, "loss_difference": 0.0}
    found = compare_with_module(result, plan, graph, FACTORY, 5)
    assert found["module_losses"] == pytest.approx(alone, rel=1e-5)
    assert found["loss_difference"] < 1e-5
    scaled = {**result, "losses": [1.5 * loss for loss in alone]}
    assert compare_with_module(scaled, plan, graph, FACTORY, 5)["loss_difference"] == pytest.approx(0.5, rel=1e-3)


def test_a_graph_file_has_no_module_to_compare_with() -> None:
    graph = replace(load_model(FACTORY), name="other")
    plan = make_plan(graph, load_cluster("local:2"), options=PlanOptions(global_batch=8, baselines=()))
    result: dict[str, Any] = {"losses": [1.0], "reference_losses": [1.0], "loss_difference": 0.0}
    assert compare_with_module(result, plan, graph, "zoo:gpt2", 0) is result
