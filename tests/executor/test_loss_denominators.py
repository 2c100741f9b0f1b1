"""On two real ranks: losses that are sums, or means over what counts, train in 1, 2 and 4 microbatches, by data parallelism
and in every schedule of stages, as on one device with the whole batch."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from autosbp.api import LogicalGraph, PlanOptions, load_cluster, make_plan, run_trial
from autosbp.executor.parameter_shards import initial_parameters
from autosbp.executor.single_device_reference import SingleDeviceReference, reference_batch_size, reference_device
from autosbp.executor.training import random_batch
from autosbp.graph.capture import capture
from autosbp.launch.local import run_ranks
from autosbp.plan.plan import Strategy
from autosbp.plan.schedules import GPIPE, INTERLEAVED, ONE_F_ONE_B, ZERO_BUBBLE
from tests.executor.pipeline.strategies import data_parallel, one_stage, pipelined

BATCH = 8
SCHEDULES = (
    (GPIPE, 1, 1),
    (GPIPE, 2, 1),
    (ONE_F_ONE_B, 4, 1),
    (INTERLEAVED, 4, 2),
    (ZERO_BUBBLE, 2, 1),
    (ZERO_BUBBLE, 4, 1),
)
"""With microbatches and chunks a stage."""
Loss = Callable[[Tensor, Tensor], Tensor]
Reports = dict[str, list[dict[str, Any]]]


class Model(nn.Module):
    """Four numbers a sample, and the loss of these and labels."""

    def __init__(self, loss: Loss) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))
        self.loss = loss

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        """The loss."""
        return self.loss(self.layers(x), labels)


def masked(h: Tensor, y: Tensor, least: float) -> Tensor:
    """Of the samples that have a label, by their number but no less than this."""
    mask = y >= 0
    return (h.gather(1, y.clamp(min=0)[:, None]).squeeze(1) * mask).sum() / mask.sum().clamp(min=least)


LOSSES: dict[str, Loss] = {
    "sum": lambda h, y: F.cross_entropy(h, y, reduction="sum"),
    "labels": lambda h, y: F.cross_entropy(h, y),
    "weighted labels": lambda h, y: F.cross_entropy(h, y, weight=torch.tensor([0.5, 1.0, 2.0, 4.0]).to(h.dtype)),
    "masked, by at least 1": lambda h, y: masked(h, y, 1),
    "masked, by at least 100": lambda h, y: masked(h, y, 100),
    "masked means": lambda h, y: (h.mean(1) * (y >= 0)).mean() / ((y >= 0).to(h.dtype).mean() + 0.125),
    "labels and a mean": lambda h, y: F.cross_entropy(h, y, label_smoothing=0.1) + 0.3 * (h**2).mean(),
}


def contrastive(h: Tensor, _: Tensor) -> Tensor:
    return F.cross_entropy(h @ h.t(), torch.arange(len(h)))


def graph_of(loss: Loss) -> LogicalGraph:
    torch.manual_seed(0)
    example = {"x": torch.randn(BATCH, 6, dtype=torch.float64), "labels": torch.arange(BATCH) % 4}
    return capture(Model(loss).double(), example, name="model")


def in_microbatches(strategy: Strategy) -> Strategy:
    return replace(strategy, global_batch=BATCH, optimizer="sgd")


def strategies(graph: LogicalGraph) -> dict[str, Strategy]:
    found = {}
    for count in (1, 2, 4):
        found[f"data parallel {count}"] = in_microbatches(data_parallel_of(graph, BATCH // count))
    for schedule, count, virtual in SCHEDULES:
        alone = in_microbatches(one_stage(graph, 1, BATCH // count))
        found[f"{schedule.name} {count}"] = pipelined(graph, alone, 2, schedule, virtual)
    return found


def data_parallel_of(graph: LogicalGraph, micro_batch: int) -> Strategy:
    """Layouts are the same at any microbatch."""
    return replace(data_parallel(graph, 2), micro_batch=micro_batch)


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Reports:
    folder, cases = tmp_path_factory.mktemp("whole_batch"), {}
    for name, loss in LOSSES.items():
        graph = graph_of(loss)
        for label, strategy in strategies(graph).items():
            cases[f"{name}, {label}"] = {"graph": graph.to_dict(), "strategy": strategy.to_dict()}
    mixed = graph_of(contrastive)
    cases["contrastive"] = {"graph": mixed.to_dict(), "strategy": in_microbatches(data_parallel_of(mixed, 2)).to_dict()}
    (folder / "request.json").write_text(json.dumps(cases))
    arguments = [str(folder / "request.json"), str(folder / "result.json")]
    outcome = run_ranks("tests.executor.whole_batch_worker", arguments, 2, folder / "log", timeout_s=120)
    assert outcome.reason == "", outcome.log_tail
    return dict(json.loads((folder / "result.json").read_text()))


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("key", ["loss", "parameters"])
def test_five_steps_in_microbatches_are_those_of_the_whole_batch_to_1e_9(reports: Reports, name: str, key: str) -> None:
    ran = {label: ranks for label, ranks in reports.items() if label.startswith(f"{name}, ")}
    assert len(ran) == 3 + len(SCHEDULES)
    for label, ranks in ran.items():
        assert max(rank[key] for rank in ranks) <= 1e-9, label


def test_nothing_more_is_sent_than_was_charged(reports: Reports) -> None:
    for label, ranks in reports.items():
        assert all(rank["collectives_match"] for rank in ranks), label


def test_ops_over_several_samples_are_reported_as_different(reports: Reports) -> None:
    assert min(rank["loss"] for rank in reports["contrastive"]) > 1e-2


def test_a_trial_that_differs_from_the_whole_batch_says_why(tmp_path_factory: pytest.TempPathFactory) -> None:
    graph = graph_of(contrastive)
    options = PlanOptions(global_batch=BATCH, micro_batch=2, stages=1)
    plan = make_plan(graph, load_cluster("local:1"), None, options)
    result = run_trial(plan, graph, steps=1, warmup=1, workdir=tmp_path_factory.mktemp("trial"))
    assert result["loss_difference"] > 1e-2
    assert any("combines several samples" in reason for reason in result["differs_as"])
    assert set(result["differs_as"]) <= set(plan.document["warnings"])


@pytest.mark.parametrize("name", ["sum", "labels", "labels and a mean"])
def test_reference_losses_use_microbatches_if_the_batch_does_not_fit(name: str) -> None:
    graph = graph_of(LOSSES[name])
    parameters, batch = initial_parameters(graph, seed=1), random_batch(graph, BATCH, seed=2)
    whole, parts = (
        SingleDeviceReference(graph, parameters, global_batch=BATCH, micro_batch=size, optimizer="sgd")
        for size in (None, 2)
    )
    for _ in range(3):
        assert float(parts.step(batch)) == pytest.approx(float(whole.step(batch)), rel=1e-12)
    assert reference_batch_size(graph, BATCH, 2, None) == reference_batch_size(graph, BATCH, 2, 2**30) == BATCH
    assert reference_batch_size(graph, BATCH, 2, 1000) == 2


def test_a_reference_runs_on_a_gpu_that_has_room_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, gpu = graph_of(LOSSES["sum"]), torch.device("cuda", 0)
    free = [2**40]
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free[0], 2**40))
    where, room = reference_device(graph, 2, gpu)
    assert where == gpu and room is not None and room < 2**40
    free[0] = 2**40 - room  # what parameters take, and nothing for what ops make
    assert reference_device(graph, 2, gpu)[0] == torch.device("cpu")
    assert reference_device(graph, 2, torch.device("cpu"))[0] == torch.device("cpu")
