"""Estimates of pipelines: schedules and chunks are ranked as their exact costs rank them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autosbp.api import PlanOptions, load_cluster, make_plan, predict_costs
from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.network import NetworkModel
from autosbp.costmodel.p2p_cost import LinkModel
from autosbp.costmodel.step_events import Timeline
from autosbp.plan.schedules import INTERLEAVED, ONE_F_ONE_B, ZERO_BUBBLE, Schedule
from autosbp.search.stages.partition import CutPoints, StageProfiles
from autosbp.search.stages.schedule_candidates import WGRAD_SHARE, _work, pipelined_strategies, shortlist
from tests.search.plans import graph_of

pytestmark = pytest.mark.integration

CLUSTER, STAGES, BATCH = "dgx-a100-80g:1", 4, 64


@pytest.mark.some(2)
@pytest.mark.parametrize(("schedule", "waits"), [(ONE_F_ONE_B, 3.0), (INTERLEAVED, 3.0), (ZERO_BUBBLE, 1.5)])
def test_pipelines_are_ranked_as_they_cost(schedule: Schedule, waits: float) -> None:
    """With the quickest number of chunks, and with the fewest, which are there for where the others do not fit."""
    graph, cluster = graph_of("gpt2-1.5b"), load_cluster(CLUSTER)
    options = PlanOptions(
        global_batch=BATCH, micro_batch=4, stages=STAGES, schedules=(schedule.name,), recompute=0, baselines=()
    )
    strategy = make_plan(graph, cluster, None, options).strategy
    network, compute = NetworkModel(cluster), ComputeModel(cluster.device)
    bound, plain = graph.bind(batch=4), replace(strategy, pipeline=None)
    seconds = Timeline(bound, plain, BoxingModel(network, plain.mesh), compute).op_seconds()
    found = [
        *pipelined_strategies(
            bound, plain, seconds, STAGES, LinkModel(network, compute.copy_bytes_per_s), (schedule.name,)
        )
    ]
    chunks = [each.pipeline.num_virtual for _, each in found if each.pipeline is not None]
    assert len(found) == len({each.pipeline.cuts for _, each in found if each.pipeline is not None})
    assert min(chunks) == (2 if schedule == INTERLEAVED else 1)
    assert schedule == ONE_F_ONE_B or chunks[0] > min(chunks), "small chunks wait less"
    exact = [predict_costs(graph, each, cluster).step_time_s for _, each in found]
    assert exact == sorted(exact)
    assert [estimate for estimate, _ in found] == pytest.approx(exact, rel=0.03)
    busy_s = sum(seconds.values()) / STAGES
    assert exact[0] < (BATCH / 4 + waits) * busy_s * 1.05
    if schedule == ZERO_BUBBLE:
        assert shortlist(found) == found


def test_a_quick_stage_puts_off_its_part_and_no_more() -> None:
    """Of devices four times as quick: what is left of backward is never less than nothing."""
    names, before = ("b", "c", "d"), np.array([1.0, 2.0, 3.0])
    pace = StageProfiles((before, before / 4), (4.0, 1.0), np.zeros(3), 0.0, None)
    places = CutPoints(names, before, np.zeros(3), 4.0, (1, 2, 3), program=("a", *names), stage_profiles=pace)
    work = _work(places, ("c",), 2, 0.0, dict.fromkeys(("a", *names), WGRAD_SHARE))
    assert work.seconds.tolist() == [2.0, 0.5]
    assert work.deferred == pytest.approx(WGRAD_SHARE * work.seconds)
