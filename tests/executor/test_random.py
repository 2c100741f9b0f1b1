"""Random ops under a strategy: replicas agree, shards differ, rates hold, a step repeats under its seed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from autosbp.api import LogicalGraph, PlanOptions, load_cluster, load_graph, make_plan, run_trial
from autosbp.executor import comm_ops
from autosbp.executor.lowering import lower
from autosbp.executor.parameter_shards import initial_parameters, shard
from autosbp.executor.runtime import Runtime
from autosbp.executor.training import random_batch
from autosbp.graph.capture import capture
from autosbp.graph.ir import Node
from autosbp.plan.plan import Signature, Strategy
from autosbp.sbp.layout import parse_nd_sbp
from autosbp.testing.strategy_samples import sample_strategies
from autosbp.testing.virtual import VirtualRanks, plain_mesh
from autosbp.testing.virtual_cases import Case, of, op_case, x
from autosbp.testing.virtual_ops import local_program

FLOAT = {"dtype": "float32"}


def drawn(op: str, case: Case, layouts: str, **run: int) -> list[torch.Tensor]:
    """The op on ones, on a mesh of 2x2 devices; every rank's output."""
    graph, node = op_case(op, case)
    sources, _, result = layouts.partition(" -> ")
    signature = Signature(tuple(parse_nd_sbp(each) for each in sources.split()), (parse_nd_sbp(result),))
    mesh = plain_mesh(2, 2)
    programs = [local_program(graph, node, signature, mesh, rank) for rank in range(mesh.size)]

    def work(runtime: Runtime) -> torch.Tensor:
        for name, value in run.items():
            setattr(runtime, name, value)
        ones = [
            shard(torch.ones(graph.meta(ref).sizes), layout, mesh, runtime.coordinate)
            for ref, layout in zip(node.refs(), signature.ins, strict=True)
        ]
        out: torch.Tensor = programs[runtime.rank](*ones)[0]
        return out

    return VirtualRanks(mesh).run(work)


def test_replicas_draw_the_same_and_shards_do_not() -> None:
    parts = drawn("aten.dropout.default", of(x(64, 64), 0.25, True), "S0,I -> S0,I")
    assert torch.equal(parts[0], parts[1]) and torch.equal(parts[2], parts[3])
    agreement = float((parts[0] == parts[2]).float().mean())
    assert agreement == pytest.approx(0.75**2 + 0.25**2, abs=0.05), "as of two independent masks"


def test_every_shard_keeps_its_share_and_the_mean() -> None:
    for part in drawn("aten.dropout.default", of(x(256, 256), 0.25, True), "S0,S1 -> S0,S1"):
        assert float((part != 0).float().mean()) == pytest.approx(0.75, abs=0.02)
        assert float(part.mean()) == pytest.approx(1.0, abs=0.03)
        assert part.unique().tolist() == [0.0, pytest.approx(1 / 0.75)]


@pytest.mark.parametrize("change", [{"seed": 1}, {"step": 1}, {"micro": 1}], ids=str)
def test_random_draws_depend_on_seed_step_and_microbatch(change: dict[str, int]) -> None:
    case = of(x(64, 64), 0.5, True)
    first, again, other = (drawn("aten.dropout.default", case, "S0,I -> S0,I", **run) for run in ({}, {}, change))
    assert torch.equal(torch.stack(first), torch.stack(again))
    assert float((first[0] == other[0]).float().mean()) == pytest.approx(0.5, abs=0.05)


def test_attention_drops_weights_per_shard_of_heads() -> None:
    query = x(2, 4, 32, 8)
    case = of(query, query, query, None, 0.5)
    parts = drawn("aten.scaled_dot_product_attention.default", case, "S1,I S1,I S1,I -> S1,I")
    assert torch.equal(parts[0], parts[1])
    assert not torch.equal(parts[0], parts[2])
    assert float(torch.stack(parts).mean()) == pytest.approx(1.0, abs=0.05)


def test_the_random_state_of_the_training_loop_is_unchanged() -> None:
    with Runtime(plain_mesh(2), 1, torch.device("cpu")).active():
        torch.manual_seed(7)
        wanted = torch.rand(4)
        torch.manual_seed(7)
        comm_ops.run_random_op(torch.ops.aten.dropout.default, 3, 1, torch.ones(4, 4), 0.5, True)
        assert torch.equal(torch.rand(4), wanted)


def test_an_op_that_drops_nothing_is_not_random() -> None:
    for case in (of(x(4, 4), 0.0, True), of(x(4, 4), 0.5, False)):
        graph, node = op_case("aten.dropout.default", case)
        mesh = plain_mesh(2)
        signature = Signature(((parse_nd_sbp("S0")),), ((parse_nd_sbp("S0")),))
        assert "drawn" not in local_program(graph, node, signature, mesh, 0).code


def dropping() -> LogicalGraph:
    """loss = sum(dropout(dropout(x) W)): one mask of data, one of a value with a gradient."""

    def node(name: str, op: str, args: list[object], shape: list[object]) -> dict[str, object]:
        return {"name": name, "op": f"aten.{op}", "args": args, "outputs": [{"shape": shape, **FLOAT}]}

    return load_graph({
        "schema": "autosbp.graph/1",
        "name": "dropping",
        "symbols": {"batch": 8},
        "parameters": [{"name": "w", "shape": [16, 16], **FLOAT}],
        "inputs": [{"name": "x", "shape": ["batch", 16], **FLOAT}],
        "constants": [],
        "nodes": [
            node("noisy", "dropout.default", [{"ref": "x"}, 0.5, True], ["batch", 16]),
            node("y", "mm.default", [{"ref": "noisy"}, {"ref": "w"}], ["batch", 16]),
            node("kept", "dropout.default", [{"ref": "y"}, 0.5, True], ["batch", 16]),
            node("loss", "sum.default", [{"ref": "kept"}], []),
        ],
        "loss": {"ref": "loss"},
    })  # fmt: skip


def step(graph: LogicalGraph, strategy: Strategy, seed: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Every rank's loss and gradient of its part of w."""
    bound = graph.bind(batch=strategy.micro_batch)
    parameters, batch = initial_parameters(graph, 0), random_batch(graph, strategy.micro_batch, 1)
    programs = [lower(bound, strategy, rank) for rank in range(strategy.mesh.size)]

    def work(runtime: Runtime) -> tuple[torch.Tensor, torch.Tensor]:
        runtime.seed = seed
        leaf = shard(parameters["w"], strategy.parameters["w"], strategy.mesh, runtime.coordinate).requires_grad_()
        loss = programs[runtime.rank](leaf, batch["x"])
        return loss.detach(), torch.autograd.grad(loss, leaf)[0]

    return VirtualRanks(strategy.mesh).run(work)


def test_a_training_step_repeats_under_its_seed_in_every_layout() -> None:
    graph = dropping()
    for strategy in sample_strategies(graph, load_cluster("local:2x2"), 6, global_batch=8, micro_batch=8):
        first, again, other = (step(graph, strategy, seed) for seed in (0, 0, 1))
        losses = torch.stack([loss for loss, _ in first])
        assert bool((losses == losses[0]).all()), "every rank has the one loss"
        for (loss, gradient), (loss_again, gradient_again) in zip(first, again, strict=True):
            assert torch.equal(loss, loss_again) and torch.equal(gradient, gradient_again)
        assert not torch.equal(first[0][0], other[0][0])


def test_masks_of_data_are_one_mask_on_all_ranks() -> None:
    graph = dropping()
    bound = graph.bind(batch=8)
    (noisy,) = [node for node in bound.nodes if node.name == "noisy"]
    masks = [data_mask(bound, noisy, rank) for rank in range(4)]
    assert all(torch.equal(mask, masks[0]) for mask in masks)


def data_mask(graph: LogicalGraph, node: Node, rank: int) -> torch.Tensor:
    strategy = next(iter(sample_strategies(dropping(), load_cluster("local:2x2"), 1, global_batch=8, micro_batch=8)))
    program = lower(graph, strategy, rank)
    drawn_node = next(each for each in program.graph.nodes if "run_random_op" in str(each.target))
    runtime = Runtime(strategy.mesh, rank, torch.device("cpu"))
    with runtime.active():
        out: torch.Tensor = drawn_node.target(drawn_node.args[0], *drawn_node.args[1:3], torch.ones(8, 16), 0.5, True)
    return out


def test_a_trial_with_dropout_says_that_its_difference_is_statistical(tmp_path: Path) -> None:
    graph = capture(WithDropout(), {"x": torch.randn(4, 16), "y": torch.zeros(4, dtype=torch.long)}, name="dropout")
    options = PlanOptions(global_batch=8, baselines=(), stages=1)
    plan = make_plan(graph, load_cluster("local:1"), None, options)
    result = run_trial(plan, graph, steps=1, warmup=1, workdir=tmp_path)
    assert 0 < result["loss_difference"] < 4 * result["loss_spread"] < 1
    assert any(reason.startswith("The difference is statistical") for reason in result["differs_as"])


class WithDropout(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide, self.head = torch.nn.Linear(16, 64), torch.nn.Linear(64, 10)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self.head(torch.dropout(self.wide(x), 0.5, True)), y)
