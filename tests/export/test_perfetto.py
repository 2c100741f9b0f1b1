"""The trace is the predicted step: same time, same collectives, in order."""

from __future__ import annotations

import json
from typing import Any

import pytest

from autosbp.cluster.spec import load_cluster
from autosbp.costmodel.calibration import Calibration, CollectiveFit, Point
from autosbp.costmodel.step_collectives import collectives
from autosbp.errors import InputError
from autosbp.export import export_plan
from autosbp.graph.ir import LogicalGraph
from autosbp.plan.plan import Plan
from autosbp.search.plan_options import PlanOptions
from autosbp.search.planner import make_plan
from autosbp.zoo import zoo_graph

BESIDE = 3
"""The track of collectives that the program does not wait for."""


def events(plan: Plan, graph: LogicalGraph, calibration: Calibration | None = None) -> list[dict[str, Any]]:
    trace = json.loads(export_plan("perfetto", plan, graph, calibration)["trace.json"])
    return [event for event in trace["traceEvents"] if event["ph"] == "X"]


@pytest.fixture(params=["winner", "data_parallel", "megatron"])
def subject(request: pytest.FixtureRequest, plan: Plan) -> Plan:
    return plan if request.param == "winner" else plan.with_baseline(request.param)


def test_the_trace_ends_with_the_step(subject: Plan, graph: LogicalGraph) -> None:
    end_s = max(event["ts"] + event["dur"] for event in events(subject, graph)) / 1e6
    assert end_s == pytest.approx(subject.document["step_time_s"], rel=1e-5)


def test_events_of_the_program_do_not_overlap(subject: Plan, graph: LogicalGraph) -> None:
    listed = events(subject, graph)
    assert {event["cat"] for event in listed} == {"compute", "comm", "optimizer"}
    own = [event for event in listed if event["tid"] != BESIDE]
    for before, after in zip(own, own[1:], strict=False):
        assert after["ts"] >= before["ts"] + before["dur"] - 1e-3


def test_collectives_are_those_that_the_plan_was_charged_for(subject: Plan, graph: LogicalGraph) -> None:
    bound = graph.bind(batch=subject.strategy.micro_batch)
    charged = [
        (call.kind, call.num_bytes, list(call.axes), call.phase, call.cause)
        for call in collectives(bound, subject.strategy)
    ]
    shown = sorted(
        (*(event["args"][key] for key in ("kind", "num_bytes", "axes", "phase", "cause")),)
        for event in events(subject, graph)
        if event["cat"] == "comm"
    )
    assert shown == sorted(charged)


def test_a_calibrated_plan_needs_its_calibration() -> None:
    graph, cluster = zoo_graph("mlp-small"), load_cluster("local:2")
    points = (Point(1024, 1e-4, 1e-5, 5), Point(1048576, 1e-3, 1e-4, 5))
    kinds = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p")
    fits = tuple(CollectiveFit(kind, (2,), 3e-4, 2e-9, 0.99, 0.01, 0.1, points) for kind in kinds)
    calibration = Calibration(cluster, "gloo", "relative", fits)
    plan = make_plan(graph, cluster, calibration, PlanOptions(global_batch=16))
    end_s = max(event["ts"] + event["dur"] for event in events(plan, graph, calibration)) / 1e6
    assert end_s == pytest.approx(plan.document["step_time_s"], rel=1e-5)
    with pytest.raises(InputError, match=f"the plan's calibration {calibration.calibration_id}"):
        events(plan, graph)


def test_a_calibration_of_another_plan_is_refused(plan: Plan, graph: LogicalGraph) -> None:
    other = Calibration(load_cluster("local:2x2"), "gloo", "relative", ())
    with pytest.raises(InputError, match="made without a calibration"):
        events(plan, graph, other)
