"""Maxima of split values without a gradient: strategies that leave them partial train as the whole graph does.

Here on virtual ranks; ``test_equality`` has maxima and minima on real ones.
"""

from __future__ import annotations

import torch

from autosbp.cluster.spec import load_cluster
from autosbp.graph.capture import capture
from autosbp.sbp.boxing import PMAX
from autosbp.testing.strategy_samples import sample_strategies
from autosbp.testing.virtual_program import check_strategy


class Shifted(torch.nn.Module):
    """A layer whose outputs are shifted by their maximum, which has no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(8, 16, bias=False, dtype=torch.float64)
        self.outer = torch.nn.Linear(16, 4, bias=False, dtype=torch.float64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.inner(x)
        shifted = hidden - hidden.detach().amax(-1, keepdim=True)
        return self.outer(shifted.tanh()).pow(2).sum()


def test_sampled_strategies_with_partial_maxima_train_as_one_device() -> None:
    graph = capture(Shifted(), {"x": torch.zeros(4, 8, dtype=torch.float64)}, name="shifted")
    cluster = load_cluster("local:2x2")
    kinds = set()
    for strategy in sample_strategies(graph, cluster, 40, global_batch=4, micro_batch=4):
        if any(PMAX in layout for signature in strategy.signatures.values() for layout in signature.outs):
            for issued in check_strategy(graph, strategy):
                kinds |= {call.kind for call in issued}
    assert kinds >= {"all_reduce", "reduce_scatter"}
