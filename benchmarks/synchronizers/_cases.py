"""Models, clusters and synchronization strategies of the comparison."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import nn

from autosbp.api import LogicalGraph, PlanOptions, capture_module, make_plan
from autosbp.cluster.spec import Cluster
from autosbp.plan.plan import Strategy
from autosbp.search.sync_builders import BUILDERS, CHUNKED, with_sync
from autosbp.testing.emulated import Shape
from benchmarks.prediction._models import CASES as DENSE
from benchmarks.prediction._models import Case

CHUNKS = (1, 4, 128)
CLUSTERS: Mapping[str, Shape] = {
    "2x2": Shape(2, 2, 200.0),
    "4x1": Shape(4, 1, 200.0),
    "2x2-latency": Shape(2, 2, 400.0, 2.0),
}
"""Two nodes of two ranks; four nodes; two nodes with faster links of 2 ms latency."""
ROWS, WIDTH = 20_000, 32


class Recommender(nn.Module):
    """Users and items as rows of two large embeddings, then a small MLP (He et al. 2017: neural collaborative filtering)."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(ROWS, WIDTH), nn.Embedding(ROWS, WIDTH)
        self.layers = nn.Sequential(nn.Linear(2 * WIDTH, 64), nn.ReLU(), nn.Linear(64, 16))

    def forward(self, user: torch.Tensor, item: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        rows = torch.cat([self.users(user), self.items(item)], 1)
        return nn.functional.cross_entropy(self.layers(rows), labels)


def _recommender() -> LogicalGraph:
    inputs = {name: torch.zeros(4, dtype=torch.long) for name in ("user", "item", "labels")}
    return capture_module(Recommender(), inputs, name="ncf", input_high={"user": ROWS, "item": ROWS, "labels": 16})


MODELS: Mapping[str, Case] = {
    "ncf": Case(_recommender, 512),
    "vgg": replace(DENSE["vgg-head"], batch=128),
    "gpt2": replace(DENSE["gpt2"], batch=8),
}


def data_parallel(graph: LogicalGraph, cluster: Cluster, batch: int) -> Strategy:
    options = PlanOptions(global_batch=batch, micro_batch=batch, stages=1, baselines=("data_parallel",))
    return make_plan(graph, cluster, None, options).baseline_strategy("data_parallel")


def strategies(graph: LogicalGraph, cluster: Cluster, batch: int) -> Iterator[tuple[str, Strategy]]:
    """The default buckets and every builder x number of variables in a message, each different strategy once."""
    plain = data_parallel(graph, cluster, batch)
    yield "default", plain
    seen = set[str]()
    for name in BUILDERS:
        for chunk in CHUNKS if name in CHUNKED else (None,):
            found = with_sync(graph, plain, cluster, name, chunk)
            if str(found.sync) not in seen:
                seen.add(str(found.sync))
                yield name if chunk is None else f"{name} {chunk}", found
