"""Recurrent layers on one rank: what autograd keeps, and the most bytes that torch counts, are the predicted ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from autosbp.costmodel.memory import rank_memory
from autosbp.executor.parameter_shards import initial_parameters
from autosbp.executor.runtime import Runtime
from autosbp.executor.training import Trainer, random_batch
from autosbp.executor.trial_metrics import SavedBytes
from autosbp.graph.capture import capture
from autosbp.graph.discovered_rules import DiscoveredRule
from autosbp.graph.ir import LogicalGraph
from benchmarks.lowering._strategies import data_parallel
from tests.executor.test_memory_profiled import allocated

pytestmark = pytest.mark.integration

BATCH, STEPS = 8, 9
KEPT_WHOLE = DiscoveredRule((), "runs on one rank here")


class Coder(nn.Module):
    """Reads a sequence, and another one from the states that it ends with."""

    def __init__(self, kind: type[nn.RNNBase], size: int, hidden: int, **settings: Any) -> None:
        super().__init__()
        self.embed = nn.Linear(size, size, dtype=settings.get("dtype"))
        self.one, self.two = (kind(size, hidden, **settings) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        x = x if self.one.batch_first else x.transpose(0, 1)
        out: torch.Tensor = self.two(x, self.one(x)[1])[0]
        return out.square().mean()


SETTINGS: Mapping[str, dict[str, Any]] = {
    "one layer": {},
    "batch first": {"batch_first": True},
    "two layers with dropout": {"num_layers": 2, "dropout": 0.1},
    "bidirectional, batch first": {"bidirectional": True, "num_layers": 2, "batch_first": True},
    "no biases": {"bias": False},
    "float64": {"dtype": torch.float64},
}
SIZES = ((48, 48), (20, 100))


def _graph(
    kind: type[nn.RNNBase], sizes: tuple[int, int], settings: dict[str, Any], steps: int = STEPS
) -> LogicalGraph:
    module = Coder(kind, *sizes, **settings)
    x = torch.zeros(BATCH, steps, sizes[0], dtype=settings.get("dtype"))
    graph = capture(module.to("meta").train(), {"x": x}, name="coder")
    layers = [node for node in graph.nodes if node.op.removeprefix("aten.").startswith(("rnn_", "gru.", "lstm."))]
    assert len(layers) == 2
    nodes = tuple(replace(node, rule="whole") if node in layers else node for node in graph.nodes)
    return replace(graph, nodes=nodes, rules={"whole": KEPT_WHOLE})


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.some(4)
def test_the_peak_and_what_is_kept_are_what_torch_allocates(
    kind: type[nn.RNNBase], name: str, sizes: tuple[int, int]
) -> None:
    _compare(_graph(kind, sizes, SETTINGS[name]))


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("settings", [{}, {"num_layers": 2, "bidirectional": True}, {"bias": False}])
@pytest.mark.some(5)
def test_bfloat16_peaks_match_torch(kind: type[nn.RNNBase], sizes: tuple[int, int], settings: dict[str, Any]) -> None:
    if kind is nn.LSTM and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("oneDNN has no products in bfloat16 for this processor, so ATen's steps run")
    _compare(_graph(kind, sizes, {**settings, "dtype": torch.bfloat16}, steps=33), rel=0.01)


def _compare(graph: LogicalGraph, rel: float = 0.005) -> None:
    strategy = data_parallel(graph, 1, BATCH)
    memory = rank_memory(graph.bind(**dict.fromkeys(graph.symbols, BATCH)), strategy)
    assert memory.peak == pytest.approx(allocated(graph, strategy), rel=rel)
    device = torch.device("cpu")
    trainer = Trainer(
        graph, strategy, initial_parameters(graph, 0), device=device, runtime=Runtime(strategy.mesh, 0, device)
    )
    batch = random_batch(graph, BATCH, 0)
    with SavedBytes([*trainer.locals.values(), *batch.values()]) as saved:
        trainer.step(batch)
    assert memory.kept == pytest.approx(saved.bytes, rel=0.002)
