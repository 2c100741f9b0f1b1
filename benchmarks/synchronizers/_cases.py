"""Models, clusters and synchronization strategies of the comparison."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import nn

from autosbp.api import LogicalGraph, PlanOptions, capture_hf_config, capture_module, op_keys
from autosbp.cluster.spec import Cluster, load_cluster
from autosbp.plan.plan import Strategy
from autosbp.search.sync_builders import BUILDERS, CHUNKED, with_sync
from autosbp.testing.emulated import Shape
from autosbp.zoo.models import MLP
from benchmarks.lowering._strategies import data_parallel_on
from benchmarks.prediction._models import Case

CHUNKS = (1, 4, 128)
CLUSTERS: Mapping[str, Shape] = {
    "2x2": Shape(2, 2, 200.0),
    "4x1": Shape(4, 1, 200.0),
    "2x2-latency": Shape(2, 2, 400.0, 2.0),
}
"""Two nodes of two ranks; four nodes; two nodes with faster links of 2 ms latency."""
ROWS, WIDTH = 5_000, 32


class Recommender(nn.Module):
    """Neural collaborative filtering (He et al. 2017): two large embeddings of users and items, then a small MLP."""

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


def _dense() -> LogicalGraph:
    """The dense layers at the end of VGG (Simonyan and Zisserman 2015), 28 times narrower."""
    sizes = (896, 256, 256, 64)
    inputs = {"x": torch.zeros(4, sizes[0]), "labels": torch.zeros(4, dtype=torch.long)}
    return capture_module(MLP(sizes), inputs, name="vgg", input_high={"labels": sizes[-1]})


def _gpt2() -> LogicalGraph:
    config = {
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 1024, "n_positions": 32, "n_embd": 64,
        "n_layer": 4, "n_head": 4, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
    }  # fmt: skip
    return capture_hf_config(config, 32)


MODELS: Mapping[str, Case] = {"ncf": Case(_recommender, 256), "vgg": Case(_dense, 128), "gpt2": Case(_gpt2, 8)}
"""Models with about 300,000 parameters each, so that a step over slow links takes a fraction of a second."""


def replica_op_keys(graph: LogicalGraph, batch: int, replicas: int) -> list[str]:
    """Keys of the ops of one replica."""
    part = batch // replicas
    return op_keys(graph, load_cluster("local:1"), PlanOptions(global_batch=part, micro_batch=part, stages=1))


def strategies(graph: LogicalGraph, cluster: Cluster, batch: int) -> Iterator[tuple[str, Strategy]]:
    """The default buckets, and every builder with every number of variables per message, without duplicates."""
    nodes, inside = (level.count for level in cluster.levels)
    plain = data_parallel_on(graph, f"emulated:{nodes}x{inside}", batch)
    yield "default", plain
    seen = set[str]()
    for name in BUILDERS:
        for chunk in CHUNKS if name in CHUNKED else (None,):
            found = with_sync(graph, plain, cluster, name, chunk)
            if str(found.sync) not in seen:
                seen.add(str(found.sync))
                yield name if chunk is None else f"{name} {chunk}", found
