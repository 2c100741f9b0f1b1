"""Estimates of pipelines: schedules and chunks are ranked as their exact costs rank them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autosbp.api import PlanOptions, load_cluster, make_plan, predict_costs
from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.deliveries import LinkModel
from autosbp.costmodel.network import NetworkModel
from autosbp.costmodel.timeline import Timeline
from autosbp.pipeline import INTERLEAVED, ONE_F_ONE_B, ZERO_BUBBLE
from autosbp.search._pipelines import pipelines, shortlist
from tests.search.plans import graph_of

CLUSTER, STAGES, BATCH = "dgx-a100-80g:1", 4, 64


@pytest.mark.parametrize(("schedule", "waits"), [(ONE_F_ONE_B, 3.0), (INTERLEAVED, 3.0), (ZERO_BUBBLE, 1.5)])
def test_pipelines_are_ranked_as_they_cost(schedule: str, waits: float) -> None:
    """With the quickest number of chunks, and with the fewest, which are there for where the others do not fit."""
    graph, cluster = graph_of("gpt2-1.5b"), load_cluster(CLUSTER)
    options = PlanOptions(
        global_batch=BATCH, micro_batch=4, stages=STAGES, schedules=(schedule,), recompute=0, baselines=()
    )
    strategy = make_plan(graph, cluster, None, options).strategy
    network, compute = NetworkModel(cluster), ComputeModel(cluster.device)
    bound, plain = graph.bind(batch=4), replace(strategy, pipeline=None)
    seconds = Timeline(bound, plain, BoxingModel(network, plain.mesh), compute).op_seconds()
    found = [*pipelines(bound, plain, seconds, STAGES, LinkModel(network, compute.copy_bytes_per_s), (schedule,))]
    chunks = [each.pipeline.num_virtual for _, each in found if each.pipeline is not None]
    assert len(found) == len({each.pipeline.cuts for _, each in found if each.pipeline is not None})
    assert min(chunks) == (2 if schedule == INTERLEAVED else 1)
    assert schedule == ONE_F_ONE_B or chunks[0] > min(chunks), "small chunks wait less"
    exact = [predict_costs(graph, each, cluster).step_time_s for _, each in found]
    assert exact == sorted(exact)
    assert [estimate for estimate, _ in found] == pytest.approx(exact, rel=0.03)
    busy_s = sum(seconds.values()) / STAGES
    assert exact[0] < (BATCH / 4 + waits) * busy_s * 1.05
    assert shortlist(found) == (found if schedule == ZERO_BUBBLE else found[: len(shortlist(found))])
