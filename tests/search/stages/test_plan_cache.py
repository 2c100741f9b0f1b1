"""What is kept between plans changes none of them, and makes the next one quicker."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from autosbp.api import Cluster, LogicalGraph, PlanOptions, load_cluster, make_plan
from autosbp.costmodel import boxing
from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.hardware_scaling import scale_link_bandwidth
from autosbp.costmodel.network import NetworkModel
from autosbp.costmodel.shortest_paths import shortest_path_s
from autosbp.search.stages.plan_cache import MAX_GRAPHS, PLAN_CACHE, PlanCache
from autosbp.utils import parallel
from autosbp.utils.json_io import canonical
from tests.search.plans import graph_of
from tests.tiers import form

pytestmark = pytest.mark.integration

Asked = tuple[LogicalGraph, Cluster, PlanOptions]
NOTHING: frozenset[str] = frozenset()
COUNTS = load_cluster("local:2x2").mesh().split_counts


def planned(asked: Asked) -> bytes:
    graph, cluster, options = asked
    return canonical(make_plan(graph, cluster, None, options).document)


def cold(asked: Asked) -> bytes:
    PLAN_CACHE.clear()
    return planned(asked)


def with_other_layer(graph: LogicalGraph) -> LogicalGraph:
    """One of its activations is another one."""
    at = next(at for at, node in enumerate(graph.nodes) if node.op == "aten.gelu.default")
    changed = replace(graph.nodes[at], op="aten.relu.default", kwargs={})
    return replace(graph, nodes=(*graph.nodes[:at], changed, *graph.nodes[at + 1 :]))


def requests() -> list[Asked]:
    graph, here, options = graph_of("gpt2-demo"), load_cluster("local:2x2"), PlanOptions(global_batch=16)
    slower, _ = scale_link_bandwidth(here, None, 0, 0.25)
    small, alone = graph_of("mlp-small"), replace(options, baselines=())
    return [
        (graph, here, options),
        (graph, here, replace(alone, global_batch=32)),
        (graph, slower, alone),
        (with_other_layer(graph), here, alone),
        (small, load_cluster("local:4x2"), options),
        (small, here, options),
        (small, here, replace(options, memory_limit_bytes=40_000_000)),
        (small, here, replace(options, pins={"*": "B"})),
    ]


def test_a_plan_after_others_is_byte_for_byte_that_of_a_fresh_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)  # no limit strikes, however slow this machine is
    asked = form(requests()[1::2], requests())
    alone = [cold(each) for each in asked]
    PLAN_CACHE.clear()
    assert [planned(each) for each in asked] == alone
    assert [planned(each) for each in reversed(asked)] == alone[::-1]


def test_planning_for_another_batch_makes_less_than_half_of_what_a_fresh_start_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = []
    monkeypatch.setattr(boxing, "shortest_path_s", lambda *about: made.append(about) or shortest_path_s(*about))
    monkeypatch.setattr(parallel, "_can_fork", lambda: False)
    graph, cluster, options = graph_of("gpt2-demo"), load_cluster("local:2x2"), PlanOptions(global_batch=16)

    def count(batch: int) -> int:
        made.clear()
        planned((graph, cluster, replace(options, global_batch=batch)))
        return len(made)

    PLAN_CACHE.clear()
    alone = count(32)
    PLAN_CACHE.clear()
    count(16)
    assert 2 * count(32) < alone
    assert count(32) == 0


def test_boxing_costs_do_not_depend_on_what_was_asked_for_before() -> None:
    cluster = load_cluster("local:4x2")
    shape, num_bytes, few = (24, 16, 8), 4 * 24 * 16 * 8, np.arange(5)
    one, other = (BoxingModel(NetworkModel(cluster), cluster.mesh()).table(shape, num_bytes, True) for _ in range(2))
    before = one.costs_of(few)
    every = one.costs_of(np.arange(one.num_layouts))
    assert np.array_equal(every, other.costs_of(np.arange(other.num_layouts)))
    assert np.array_equal(before, other.costs_of(few))
    assert np.array_equal(before[3:], other.costs_of(few[3:]))
    assert np.array_equal(before, every[few])


def test_tables_are_shared_where_links_are_alike_and_only_there() -> None:
    reuse, here = PlanCache(), load_cluster("dgx-a100-40g:2")
    mesh = load_cluster("dgx-a100-40g:1").mesh()
    known = reuse.boxing(NetworkModel(here), mesh, 1e9).known
    assert reuse.boxing(NetworkModel(load_cluster("dgx-a100-40g:4")), mesh, 1e9).known is known
    slower, _ = scale_link_bandwidth(here, None, 1, 0.5)
    assert reuse.boxing(NetworkModel(slower), mesh, 1e9).known is not known
    assert reuse.boxing(NetworkModel(here), mesh, 2e9).known is not known


def test_the_plan_cache_is_bounded() -> None:
    reuse, cluster = PlanCache(), load_cluster("local:2x2")
    models = [reuse.boxing(NetworkModel(cluster), cluster.mesh(), float(speed)) for speed in range(1, 6)]
    for model in models:
        model.table((64, 64), 4 * 64 * 64, True).costs_of(np.arange(4))
    one = models[0].table((64, 64), 4 * 64 * 64, True).num_cost_bytes
    reuse.trim(2 * one)
    kept = [reuse.boxing(NetworkModel(cluster), cluster.mesh(), model.copy_bytes_per_s).known for model in models]
    assert [each is model.known for each, model in zip(kept, models, strict=True)] == [False] * 3 + [True] * 2
    graphs = [replace(graph_of("gpt2-demo"), name=f"graph {at}") for at in range(MAX_GRAPHS + 1)]
    parts = [reuse.parts(graph, NOTHING, NOTHING, COUNTS, folds=True) for graph in graphs]
    assert reuse.parts(replace(graphs[-1]), NOTHING, NOTHING, COUNTS, folds=True) is parts[-1]
    assert reuse.parts(graphs[0], NOTHING, NOTHING, COUNTS, folds=True) is not parts[0]
    bound = parts[-1].bound(1)
    for size in range(2, 40):
        parts[-1].bound(size)
    assert parts[-1].bound(39) is parts[-1].bound(39)
    assert parts[-1].bound(1) is not bound


def test_threads_share_nothing() -> None:
    cluster = load_cluster("local:2x2")
    mine, found = PLAN_CACHE.boxing(NetworkModel(cluster), cluster.mesh(), 1e9).known, []
    other = threading.Thread(
        target=lambda: found.append(PLAN_CACHE.boxing(NetworkModel(cluster), cluster.mesh(), 1e9).known)
    )
    other.start()
    other.join()
    assert found[0] is not mine
