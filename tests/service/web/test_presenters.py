"""What pages show of stored documents."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from autosbp.api import LogicalGraph, capture, load_cluster
from autosbp.costmodel.calibration import Calibration, CollectiveFit, Point
from autosbp.costmodel.network import NetworkModel
from autosbp.costmodel.pipeline_timing import ChunkTimes, pass_spans
from autosbp.plan.pipeline import Pipeline
from autosbp.plan.plan import Signature, Strategy
from autosbp.plan.schedules import ONE_F_ONE_B
from autosbp.report.plan_diff import difference
from autosbp.sbp.layout import B, S
from autosbp.sbp.mesh import Axis, Mesh
from autosbp.service.models import TrialRow
from autosbp.service.web.forms import Form
from autosbp.service.web.number_format import data, size_unit, time_unit
from autosbp.service.web.presenters import plan_form
from autosbp.service.web.presenters.analysis_answer import what_if_chart, why_answers
from autosbp.service.web.presenters.baselines import baselines
from autosbp.service.web.presenters.calibration import predict
from autosbp.service.web.presenters.comparison import comparison_view
from autosbp.service.web.presenters.layer_folding import split_into_layers
from autosbp.service.web.presenters.list_rows import State
from autosbp.service.web.presenters.mesh_axes import layouts_of
from autosbp.service.web.presenters.page_parts import stack
from autosbp.service.web.presenters.sharding_map import sharding_map
from autosbp.service.web.presenters.step_breakdown import exposed_stack, hidden_note, time_stack
from autosbp.service.web.presenters.timeline import MOST_SPANS, events_chart, pipeline_chart
from autosbp.service.web.presenters.trial import trial_view
from tests.service.web.test_list_rows import done


@cache
def graph_of_layers() -> LogicalGraph:
    return capture("zoo:gpt2-demo").bind(batch=2)


def strategy(split: tuple[str, ...] = ()) -> Strategy:
    """Every op of GPT-2 on two devices; results of the ops named in ``split`` are split, all else is whole."""
    graph = graph_of_layers()
    signatures = {
        node.name: Signature(
            ((B,),) * len(list(node.refs())), ((S(0) if node.name in split else B,),) * len(node.outputs)
        )
        for node in graph.nodes
        if node.name in graph.parameter_dependent
    }
    parameters = {leaf.name: (B,) for leaf in graph.parameters}
    return Strategy(Mesh((Axis("g0", 2, 0),), (2,)), signatures, parameters, {}, 4, 2, "adamw")


def test_layers_that_are_alike_are_one_group_and_every_op_and_parameter_is_in_one() -> None:
    graph = graph_of_layers()
    found = sharding_map(graph, strategy())
    layers = [group for group in found.groups if group.count > 1]
    assert len(layers) == 1 and layers[0].count == len(
        [part for part in split_into_layers(graph).parts if part.layer is not None]
    )
    shown = sum(group.count * sum(not row.is_parameter for row in group.rows) for group in found.groups)
    assert shown == found.num_ops == len(graph.parameter_dependent - graph.parameter_names)
    stored = sum(group.count * sum(row.is_parameter for row in group.rows) for group in found.groups)
    assert stored == found.num_parameters


def test_a_layer_that_differs_in_layout_stage_or_recomputation_is_a_group_of_its_own() -> None:
    graph = graph_of_layers()
    layers = [part for part in split_into_layers(graph).parts if part.layer is not None]
    assert len(layers) >= 2
    first, last = layers[0].nodes, layers[-1].nodes
    count = len(sharding_map(graph, strategy()).groups)
    assert len(sharding_map(graph, strategy((last[0].name,))).groups) == count + 1
    again = replace(strategy(), recompute=((first[0].name, first[-1].name),))
    groups = sharding_map(graph, again).groups
    assert [group.recomputed for group in groups].count(True) == 1 and len(groups) == count + 1
    staged = replace(strategy(), pipeline=Pipeline(2, (last[0].name,), ONE_F_ONE_B))
    assert {group.stage for group in sharding_map(graph, staged).groups} == {0, 1}


def test_rows_are_found_by_parts_of_their_names() -> None:
    found = sharding_map(graph_of_layers(), strategy())
    hits = found.found("MLP.c_fc", 10)
    assert hits and all("mlp.c_fc" in row.name for _, row in hits)
    assert len(found.found("", 3)) == 3 and found.found("no such name", 3) == []


def test_a_layout_is_said_in_letters_and_in_words() -> None:
    shown = layouts_of("S0,S13,B,I,P")
    assert [one.letter for one in shown] == ["S0", "S13", "B", "I", "P"]
    assert shown[1].words == "split along dim 13" and shown[4].words == "partial sums"


def test_a_line_of_a_fit_bends_at_its_knots() -> None:
    points = (Point(1024, 1e-3, 1e-4, 5),)
    fit = CollectiveFit("p2p", (2,), 1e-3, 1e-9, 1.0, 0.0, 0.0, points, knots=((1000, 2e-9), (2000, 4e-9)))
    assert predict(fit, 500) == pytest.approx(1e-3 + 500e-9)
    assert predict(fit, 1500) == pytest.approx(1e-3 + 1000e-9 + 500 * 2e-9)
    assert predict(fit, 3000) == pytest.approx(1e-3 + 1000e-9 + 1000 * 2e-9 + 1000 * 4e-9)


def test_a_line_of_a_fit_is_what_plans_are_charged() -> None:
    cluster = load_cluster("local:2x2")
    fit = CollectiveFit("all_reduce", (2, 2), 1e-3, 1e-9, 1.0, 0.0, 0.0, (), knots=((10**6, 2e-9),))
    network = NetworkModel(cluster, Calibration(cluster, "gloo", "relative", (fit,)))
    for size in (1024, 10**7):  # 6 latencies, 3/2 of the bytes
        assert predict(fit, size) == pytest.approx(network.time_s("all_reduce", size, (2, 2)))


def test_a_long_pipeline_is_drawn_from_both_its_ends() -> None:
    stages, micro = 8, 512
    chunks = [ChunkTimes(1.0, 2.0, 0.0, 0.1, 0.1)] * stages
    spans = pass_spans(chunks, Pipeline(stages, tuple(map(str, range(1, stages))), ONE_F_ONE_B), micro)
    chart = pipeline_chart(spans, stages)
    drawn = chart.data["spans"]
    assert len(drawn) <= MOST_SPANS < len(spans)
    micros = {int(span[4]) for span in drawn}
    assert {0, micro - 1} <= micros and micro // 2 not in micros and "microbatches" in chart.spoken
    assert [row[1] for row in chart.table.rows] == [f"{2 * micro:,}"] * stages


def test_events_that_are_too_thin_to_see_are_one_span() -> None:
    def event(at: int, duration: int, thread: int = 1) -> dict[str, Any]:
        return {
            "tid": thread,
            "ts": at,
            "dur": duration,
            "cat": "compute",
            "name": f"op{at}",
            "args": {"phase": "forward"},
        }

    events = [event(at, 1) for at in range(20_000)] + [event(20_000, 5_000)]
    chart = events_chart(events)
    assert len(chart.data["spans"]) <= MOST_SPANS and chart.table.rows[0][1] == "20,001"
    assert chart.data["spans"][0][1] == 0 and chart.data["spans"][-1][2] == pytest.approx(chart.data["end"])


def test_parts_of_a_bar_fill_it_and_its_numbers_have_one_unit() -> None:
    found = stack("Memory", [("a", 2**30, "a"), ("b", 2**20, "b"), ("c", 0, "c")], size_unit([2**31]), 2**31, "Free")
    assert [(one.label, one.amount) for one in found.slices] == [("a", "1.00"), ("b", "0.00"), ("Free", "1.00")]
    assert sum(one.part for one in found.slices) == pytest.approx(1) and found.unit == "GiB"
    assert "a 1.00 GiB (50.0 %)" in found.spoken


def test_a_column_has_the_unit_of_its_largest_value() -> None:
    unit = time_unit([None, 0.5, 2e-6])
    assert (unit.name, unit.of(0.5), unit.of(None)) == ("ms", "500.00", "–")
    assert time_unit([]).name == time_unit([0.0]).name == "s"


def test_data_of_charts_cannot_end_their_element() -> None:
    text = str(data({"name": "</script><!-- &"}))
    assert "<" not in text and ">" not in text and "&" not in text
    assert json.loads(text) == {"name": "</script><!-- &"}


def test_a_form_is_the_request_that_it_stands_for() -> None:
    asked = plan_form.parse_form(
        Form.parse(
            b"source=zoo&zoo=gpt2&where=preset&preset=dgx-h100&nodes=2&devices=4&global_batch=1,024&memory_gib=16"
            b"&schedule=1f1b&stages=&storage=use&trials=60"
        )
    )
    assert (asked.model, asked.cluster) == ({"zoo": "gpt2"}, {"preset": "dgx-h100:2x4"})
    expected = {"global_batch": 1024, "memory_limit_bytes": 2**34, "schedules": ["1f1b"], "storage": "use"}
    assert asked.options == expected and asked.num_trials == 60


def test_presets_and_models_that_the_form_offers_are_there() -> None:
    for choice in plan_form.cluster_presets():
        load_cluster(choice.value)
    assert "gpt2-demo" in [choice.value for choice in plan_form.zoo()]


def test_a_trial_sets_what_was_measured_beside_what_was_predicted() -> None:
    predicted = {"step_time_s": 0.2, "simulated_step_time_s": 0.18, "comm_bytes_per_device": 100}
    row = TrialRow(
        id="tri-1",
        job=done("trial"),
        options={"steps": 20, "warmup": 3, "seed": 0},
        predicted={**predicted, "memory_bytes_per_device": 2**20},
        relative_error=0.1,
    )
    assert [figure.value for figure in trial_view(row).figures] == ["180 ms", "1 MiB", "100 B"]
    row.result = {
        "step_time_s": {"median": 0.2, "iqr": 0.01, "min": 0.19, "max": 0.3, "steps": 20},
        "collectives_match": True,
        "memory_bytes": 2**21,
        "comm_bytes_per_device": 100,
        "losses": [3.0, 2.0],
        "reference_losses": [3.0],
        "loss_difference": 1e-7,
        "num_ranks": 4,
    }
    view = trial_view(row)
    assert view.pairs is not None and view.losses is not None
    assert view.pairs.rows[0] == ("Step", "180 ms", "200 ms ± 3.511 ms", "+10.0 %")
    assert view.pairs.rows[1] == ("Memory per device", "1 MiB", "2 MiB", "+50.0 %")
    assert view.losses.table.rows == (("1", "3.000000", "3.000000"), ("2", "2.000000", "–"))
    assert [figure.value for figure in view.figures][:4] == ["200 ms ± 3.511 ms", "180 ms", "+10.0 %", "as predicted"]
    assert (view.state, view.gates, view.figures[4].tone) == (State("succeeded", "succeeded"), None, "")
    row.label, row.passed = "main", False
    row.gates = [{"name": "max_step_time_s", "passed": False, "sentence": "200 ms ± 3.511 ms per step, limit 150 ms"}]
    row.result = {**row.result, "loss_bound": 1e-8}
    view = trial_view(row)
    told = {fact.term: fact.value for fact in view.facts}
    assert (told["Label"], told["Gates"]) == ("main", "failed: step time")
    assert view.state == State("failed its gate", "failed") and view.figures[4].tone == "bad"
    assert view.gates is not None and view.gates.rows[0][1:] == ("failed", "200 ms ± 3.511 ms per step, limit 150 ms")


def test_the_answers_to_questions_say_what_would_change() -> None:
    alternative = {
        "signature": "S0 -> S0",
        "chosen": False,
        "step_time_s": 0.3,
        "difference_s": 0.1,
        "gap": 0.0,
        "comm_bytes_per_device": 10,
        "memory_bytes_per_device": 20,
        "changes": {f"op_{at}": {"plan": "B", "instead": "S0"} for at in range(20)},
        "reason": "",
    }
    unfit = {**alternative, "step_time_s": None, "changes": {}, "reason": "it needs 20 GiB"}
    ops = [{"op": "linear_0", "reads": ["w"], "num_signatures": 9, "alternatives": [alternative, unfit]}]
    (answer,) = why_answers({"step_time_s": 0.2, "ops": ops})
    assert (answer.lines[0].difference, answer.lines[0].num_changes, len(answer.lines[0].changes)) == (
        "+50.0 %",
        20,
        12,
    )
    assert (answer.lines[1].step, answer.lines[1].reason) == ("–", "it needs 20 GiB")
    change = {
        "change": "level n",
        "factor": 2.0,
        "same_strategy_step_time_s": 0.18,
        "step_time_s": 0.15,
        "saves": 0.25,
        "memory_bytes_per_device": 20,
        "stages": 1,
        "mesh": [["g0", 2]],
    }
    chart = what_if_chart({"step_time_s": 0.2, "changes": [change]})
    assert chart.data["names"] == ["Current", "level n"] and "level n saves most: 25.0 %" in chart.spoken
    assert what_if_chart({"step_time_s": 0.2, "changes": []}).spoken == ""


def test_a_step_is_its_parts_with_exposed_communication_by_purpose_and_what_is_hidden() -> None:
    parts = {"compute_s": 4.0, "exposed_comm_s": 3.0, "bubble_s": 0.0, "optimizer_s": 1.0}
    by_purpose = {"gradient_sync": 1.0, "loss": 0.0, "tensor_parallel": 2.0}
    plan = {"breakdown": {**parts, "hidden_comm_s": 1.0, "exposed_comm_by_purpose_s": by_purpose}}
    shown = [(one.label, one.amount, one.share) for one in time_stack(plan).slices]
    assert shown == [
        ("Computation", "4.00", "50.0 %"),
        ("Exposed communication", "3.00", "37.5 %"),
        ("Optimizer", "1.00", "12.5 %"),
    ]
    exposed = exposed_stack(plan)
    assert exposed is not None and exposed.total == "3.00"
    assert [(one.label, one.amount) for one in exposed.slices] == [
        ("Tensor parallelism", "2.00"),
        ("Gradient sync", "1.00"),
    ]
    assert hidden_note(plan) == "1 s of communication (25.0 % of the total) is hidden behind computation."
    assert exposed_stack({"breakdown": parts}) is None
    assert hidden_note({"breakdown": parts}) == "No communication is hidden behind computation."


def test_two_strategies_are_compared_by_purpose() -> None:
    parts = {"compute_s": 1.0, "exposed_comm_s": 1.0, "bubble_s": 0.0, "optimizer_s": 0.0, "hidden_comm_s": 0.5}
    costs = {"step_time_s": 2.0, "comm_bytes_per_device": 1, "memory_bytes_per_device": 1}
    mesh = {"axes": [["g0", 2, 0]], "level_counts": [2]}
    plan = {
        **costs,
        "plan_id": "plan-1",
        "provenance": {},
        "strategy": {"mesh": mesh, "parameters": {}, "signatures": {}},
        "breakdown": {**parts, "exposed_comm_by_purpose_s": {"gradient_sync": 1.0}},
    }
    twice = {name: 2 * value for name, value in parts.items()}
    other = {
        **plan,
        "step_time_s": 4.0,
        "breakdown": {**twice, "exposed_comm_by_purpose_s": {"gradient_sync": 0.5, "pipeline": 1.5}},
    }
    view = comparison_view(difference(plan, other), plan, other)
    lines = [(line.name, line.a, line.b, line.difference, line.tone) for line in view.costs]
    assert lines[0] == ("Step", "2 s", "4 s", "+100.0 %", "worse")
    at = [line[0] for line in lines].index("Exposed communication")
    assert lines[at + 1 : at + 4] == [
        ("Exposed: gradient sync", "1 s", "500 ms", "−50.0 %", "better"),
        ("Exposed: messages between stages", "0 s", "1.5 s", "–", ""),
        ("Hidden communication", "500 ms", "1 s", "+100.0 %", ""),
    ]
    assert view.chart.data["parts"][1] == {"name": "Exposed communication", "values": [1.0, 2.0]}
    assert "markers" not in view.chart.data


def test_baselines_without_a_cost_are_told_of_with_their_reasons() -> None:
    costs = {"step_time_s": 2.0, "memory_bytes_per_device": 8, "comm_bytes_per_device": 0, "breakdown": {}}
    unknown = {
        **dict.fromkeys(costs),
        "feasible": None,
        "reason": "the time limit of 1 s was reached before it was found",
    }
    known = {**costs, "feasible": True, "reason": ""}
    chart, others = baselines({**costs, "step_time_s": 1.0, "baselines": {"data_parallel": known, "megatron": unknown}})
    assert chart is not None and len(others) == 1
    assert others[0][1] == unknown["reason"]
    assert baselines({**costs, "baselines": {"megatron": unknown}})[0] is None
