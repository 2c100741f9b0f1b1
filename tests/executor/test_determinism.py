"""Plans that require determinism: the same bits on every rank in every run, and clear answers where that cannot be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from autosbp.api import LogicalGraph, Plan, PlanOptions, capture_module, load_cluster, make_plan, run_trial
from autosbp.errors import InfeasibleError, InputError
from autosbp.executor.determinism import digest
from tests.search.plans import graph_of

pytestmark = pytest.mark.integration

OPTIONS = PlanOptions(global_batch=8, micro_batch=4, deterministic=True, baselines=())


def trial(graph: LogicalGraph, plan: Plan, workdir: Path, seed: int = 0) -> dict[str, Any]:
    return run_trial(plan, graph, steps=3, warmup=1, seed=seed, workdir=workdir)


def test_two_runs_of_a_plan_on_ranks_have_the_same_bits(tmp_path: Path) -> None:
    """Experts sort, gather, add up rows by index, and look rows up."""
    graph = graph_of("moe-small")
    plan = make_plan(graph, load_cluster("local:2"), None, OPTIONS)
    assert plan.document["options"]["deterministic"] is True
    one, two = (trial(graph, plan, tmp_path / str(at)) for at in range(2))
    assert len(one["parameters_digests"]) == 2
    assert one["parameters_digests"] == two["parameters_digests"]
    assert one["losses"] == two["losses"]
    # The comparison can fail: another seed has other parameters.
    other = trial(graph, plan, tmp_path / "other", seed=1)
    assert not set(one["parameters_digests"]) & set(other["parameters_digests"])


def test_a_plan_that_does_not_require_it_has_no_hashes(tmp_path: Path) -> None:
    graph = graph_of("mlp-small")
    plan = make_plan(graph, load_cluster("local:1"), None, PlanOptions(global_batch=8, baselines=()))
    assert "deterministic" not in plan.document["options"]
    assert "parameters_digests" not in trial(graph, plan, tmp_path)


class Pooled(torch.nn.Module):
    """A convolution, and a pool to 2 x 2 whose backward adds up by atomics on a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.pool = torch.nn.AdaptiveAvgPool2d((2, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.pool(self.convolution(x)).square().mean()


def test_a_model_with_an_op_that_adds_up_in_any_order_names_it_and_the_constraint() -> None:
    graph = capture_module(Pooled(), {"x": torch.randn(8, 3, 8, 8)}, name="pooled")
    gpus, ranks = load_cluster("dgx-a100-40g:1x2"), load_cluster("local:2")
    with pytest.raises(InfeasibleError, match=r"adaptive_avg_pool2d.* has no backward kernel on cuda") as caught:
        make_plan(graph, gpus, None, OPTIONS)
    assert caught.value.constraint == "deterministic"
    assert caught.value.conflict == ("deterministic=True",)
    assert make_plan(graph, gpus, None, replace(OPTIONS, deterministic=False)).strategy
    assert make_plan(graph, ranks, None, OPTIONS).strategy  # there it has one


def test_a_non_boolean_value_is_refused() -> None:
    with pytest.raises(InputError, match="deterministic: 'yes'"):
        PlanOptions(deterministic="yes")  # type: ignore[arg-type]
    assert PlanOptions.from_dict({"deterministic": True}).deterministic


def test_a_hash_tells_bits_types_shapes_and_names_apart() -> None:
    zero = torch.zeros(4)
    every = [
        {"a": zero}, {"b": zero}, {"a": -zero}, {"a": zero.reshape(2, 2)}, {"a": zero.int()}, {"a": zero, "b": zero}, {},
    ]  # fmt: skip
    assert len({digest(one) for one in every}) == len(every)
    assert digest({"a": zero, "b": zero + 1}) == digest({"b": zero + 1, "a": zero.clone()})
