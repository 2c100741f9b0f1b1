"""Rules and boxings together: random chains of ops in random legal layouts train on virtual ranks as on one device."""

from __future__ import annotations

import random

import pytest

from autosbp.cluster.spec import load_cluster
from autosbp.program.program import Boxing, program_items
from autosbp.sbp.rules import check_graph
from autosbp.testing.virtual_program import check_strategy
from tests.sbp.composites import OPS, random_graph, random_strategy

SEEDS = range(24)
CLUSTERS = ("local:2x2", "local:2x3")


@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.some(3)
def test_a_random_chain_trains_as_on_one_device(seed: int, cluster: str) -> None:
    rng = random.Random(seed)
    graph = random_graph(rng)
    check_graph(graph)
    for _ in range(2):
        check_strategy(graph, random_strategy(graph, load_cluster(cluster), rng), seed)


def test_the_chains_hold_every_kind_of_op_and_of_boxing() -> None:
    kinds, ops = set(), set()
    for seed in SEEDS:
        rng = random.Random(seed)
        graph = random_graph(rng)
        ops |= {node.op for node in graph.nodes}
        for cluster in map(load_cluster, CLUSTERS):
            items = program_items(graph, random_strategy(graph, cluster, rng))
            kinds |= {step.forward for item in items if isinstance(item, Boxing) for step in item.steps}
    assert {"all_gather", "reduce_scatter", "all_reduce", "all_to_all", "slice", "pad", "mask", "none"} <= kinds
    assert len(ops) > len(OPS)
