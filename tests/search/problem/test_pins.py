"""Pinned layouts are kept, the rest is the cheapest, and pins that cannot be are refused with those that can."""

from __future__ import annotations

from functools import cache

import pytest

from autosbp.api import LogicalGraph, Plan, PlanOptions, capture, load_cluster, make_plan, predict_costs
from autosbp.costmodel.step_collectives import collectives
from autosbp.errors import InfeasibleError, InputError
from autosbp.sbp.layout import format_nd_sbp
from autosbp.search.bounds.work_bound import work_bound_s

pytestmark = pytest.mark.integration


@cache
def graph_of(name: str) -> LogicalGraph:
    return capture(f"zoo:{name}")


def pinned(pins: dict[str, str], *, model: str = "mlp-small", cluster: str = "local:4") -> Plan:
    return make_plan(graph_of(model), load_cluster(cluster), None, PlanOptions(global_batch=64, pins=pins))


def stored(plan: Plan) -> dict[str, str]:
    return {name: format_nd_sbp(layout) for name, layout in plan.strategy.parameters.items()}


def pins_of(plan: Plan, model: str = "mlp-small") -> dict[str, str]:
    """The stored and the used layout of every parameter."""
    used = {}
    for node in graph_of(model).nodes:
        if node.name in plan.strategy.signatures:
            for ref, layout in zip(node.refs(), plan.strategy.signatures[node.name].ins, strict=True):
                used[ref.name] = format_nd_sbp(layout)
    return {name: f"{layout} -> {used[name]}" for name, layout in stored(plan).items()}


FREE = pinned({})


def test_no_pins_leave_no_trace_in_a_plan() -> None:
    assert "pins" not in FREE.document["options"]


@pytest.mark.parametrize(
    ("model", "cluster"),
    [
        ("mlp-small", "local:4"),
        ("mlp-small", "local:2x2"),
        ("wide-deep-small", "local:2x2"),
        ("gpt2-demo", "local:2x2"),
    ],
)
def test_pinning_what_search_found_finds_the_same_strategy_or_a_quicker_one(model: str, cluster: str) -> None:
    free = make_plan(graph_of(model), load_cluster(cluster), None, PlanOptions(global_batch=64, stages=1, baselines=()))
    pins = pins_of(free, model)
    plan = pinned(pins, model=model, cluster=cluster)
    step_s = plan.document["step_time_s"]
    assert step_s < free.document["step_time_s"] or plan.strategy == free.strategy
    assert free.document["lower_bound_s"] <= step_s * (1 + 1e-9)
    assert plan.document["options"]["pins"] == pins


@pytest.mark.parametrize(
    "pins", [{"layers.1.weight": "S0"}, {"layers.0.weight": "S1,S0"}, {"layers.2.weight": "B"}, {"layers.0.bias": "S0"}]
)
def test_a_pinned_parameter_is_stored_and_used_so(pins: dict[str, str]) -> None:
    plan = pinned(pins)
    ((name, text),) = pins.items()
    wanted = text if "," in text else f"{text},{text}"
    assert stored(plan)[name] == wanted
    reader = next(node for node in graph_of("mlp-small").nodes if name in [ref.name for ref in node.refs()])
    position = [ref.name for ref in reader.refs()].index(name)
    assert format_nd_sbp(plan.strategy.signatures[reader.name].ins[position]) == wanted
    assert FREE.document["lower_bound_s"] <= plan.document["lower_bound_s"] <= plan.document["step_time_s"]


def test_a_pinned_op_has_its_layout() -> None:
    plan = pinned({"linear_1": "P"})
    assert format_nd_sbp(plan.strategy.signatures["linear_1"].outs[0]) == "P,P"


def test_a_parameter_may_be_stored_otherwise_than_it_is_used() -> None:
    plan = pinned({"*": "S0 -> B"})
    assert set(stored(plan).values()) <= {"S0", "S0,S0"}  # of all four ranks
    parallel = pinned({"*": "B"})
    for part in ("parameters", "optimizer"):
        assert 4 * plan.document["memory_breakdown"][part] == parallel.document["memory_breakdown"][part]
    bound = graph_of("mlp-small").bind(batch=64)
    kinds = {call.kind for call in collectives(bound, plan.strategy) if call.phase != "sync"}
    assert {"all_gather", "reduce_scatter"} <= kinds
    assert "reduce_scatter" not in {call.kind for call in collectives(bound, parallel.strategy)}
    # Gathers share messages that search does not know, so that no more than the least work is claimed.
    assert plan.document["lower_bound_s"] == work_bound_s(lambda _: bound, [64], 64, plan.cluster, None)
    assert parallel.document["lower_bound_s"] > plan.document["lower_bound_s"] and "ended_early" not in plan.document


def test_parameters_that_all_axes_store_alike_are_gathered_in_one_message_over_all() -> None:
    plan = pinned({"*": "S0 -> B"})
    calls = collectives(graph_of("mlp-small").bind(batch=64), plan.strategy)
    gathers = [call for call in calls if call.kind == "all_gather" and call.phase == "forward"]
    assert max(plan.strategy.mesh.group_size(call.axes) for call in gathers) == 4
    assert len(gathers) < len(plan.strategy.parameters)
    by_axis = pinned({"*": "S0 -> B", "layers.0.weight": "B,S0 -> B"})
    assert by_axis.strategy.mesh.shape == (2, 2)


def test_storing_in_parts_fits_where_whole_parameters_do_not() -> None:
    graph, cluster, limit = graph_of("mlp-small"), load_cluster("local:4"), 8_700_000
    plan = make_plan(graph, cluster, None, PlanOptions(64, memory_limit_bytes=limit, pins={"*": "S0 -> B"}))
    assert plan.document["memory_bytes_per_device"] <= limit
    with pytest.raises(InfeasibleError, match="memory_limit_bytes"):
        make_plan(graph, cluster, None, PlanOptions(64, memory_limit_bytes=limit, pins={"*": "B"}))


def test_names_go_before_patterns_and_longer_patterns_before_shorter_ones() -> None:
    plan = pinned({"layers.0.weight": "S1 -> B", "*": "B", "layers.*.weight": "S0 -> B"})
    found = stored(plan)
    assert found["layers.0.weight"] == "S1"
    assert {found[f"layers.{at}.weight"] for at in (1, 2, 3)} == {"S0"}
    assert found["layers.0.bias"] == "B"


def test_one_of_many_equal_blocks_may_be_pinned() -> None:
    names = [leaf.name for leaf in graph_of("gpt2-demo").parameters if leaf.name.endswith("mlp.c_fc.bias")]
    assert len(names) == 4
    plan = pinned({names[2]: "B,S0"}, model="gpt2-demo", cluster="local:2x2")
    found = [stored(plan)[name] for name in names]
    assert found[2] == "B,S0"
    assert "B,S0" not in (found[0], found[1], found[3])


def test_pins_reach_every_view_of_a_larger_mesh_that_can_say_them() -> None:
    plan = pinned({"layers.0.weight": "B,S0,S0,S0"}, cluster="piz-daint:16")
    mesh, layout = plan.strategy.mesh, plan.strategy.parameters["layers.0.weight"]
    whole = [axis.size for axis, sbp in zip(mesh.axes, layout, strict=True) if not sbp.is_split]
    assert whole == [2]


BAD = {
    "a misspelt name": ({"layrs.0.weight": "S0"}, "pins", "layers.0.weight"),
    "no layout": ({"layers.0.weight": "half"}, "pins.layers.0.weight", "S<dim>"),
    "a layout that the op does not have": ({"linear_1": "S5"}, "pins.linear_1", "one of B, I, P, S0, S1"),
    "a partial parameter": ({"layers.0.weight": "P"}, "pins.layers.0.weight", "one of B, I, S0, S1"),
    "a partial store": ({"layers.0.bias": "P -> P"}, "pins.layers.0.bias", "expected S<dim>, B or I"),
    "an uneven split": ({"layers.3.bias": "S0"}, "pins.layers.3.bias", "[16] over (2, 2, 2, 2, 2)"),
    "a pattern of what cannot be": (
        {"layers.*.weight": "P"},
        "pins.layers.*.weight",
        "for layers.0.weight: expected one of",
    ),
    "entries for another mesh": ({"layers.0.weight": "S0,B"}, "pins.layers.0.weight", "each of 5 mesh axes"),
    "a stored op": ({"linear_1": "S0 -> B"}, "pins.linear_1", "only parameters have a stored layout"),
    "more groups of axes than a view has": ({"layers.0.weight": "B,S0,B,S0,B"}, "pins", "at most three groups"),
}


@pytest.mark.parametrize("case", sorted(BAD))
def test_bad_pins_name_the_pin_its_value_and_what_is_legal(case: str) -> None:
    pins, field, limit = BAD[case]
    with pytest.raises(InputError) as caught:
        pinned(pins, cluster="piz-daint:32")
    assert caught.value.field == field
    assert limit in caught.value.limit


@pytest.mark.parametrize("pins", [{"layers.1.weight": "S1 -> B"}, {"layers.1.weight": "B", "linear_2": "S1"}])
def test_pins_beside_stages_are_layouts_of_one_stages_devices(pins: dict[str, str]) -> None:
    graph, cluster = graph_of("mlp-small"), load_cluster("local:2x2")
    plan = make_plan(graph, cluster, None, PlanOptions(64, stages=2, pins=pins))
    assert plan.strategy.num_stages == 2
    assert stored(plan)["layers.1.weight"] == pins["layers.1.weight"].partition(" ")[0]
    if "linear_2" in pins:
        assert format_nd_sbp(plan.strategy.signatures["linear_2"].outs[0]) == pins["linear_2"]
    assert predict_costs(graph, plan.strategy, cluster).step_time_s == plan.document["step_time_s"]
    with pytest.raises(InputError, match="each of 1 mesh axes"):
        make_plan(graph, cluster, None, PlanOptions(64, stages=2, pins={"layers.1.weight": "B,S0"}))


def test_pins_that_do_not_go_together_are_infeasible_and_say_what_does() -> None:
    with pytest.raises(
        InfeasibleError, match=r"linear_0 are incompatible; linear_0 \(aten.linear.default\) has S0"
    ) as caught:
        pinned({"layers.0.weight": "S0", "layers.0.bias": "B"}, cluster="piz-daint:32")
    assert (caught.value.constraint, caught.value.limit) == ("pins", "layers.0.bias=B, layers.0.weight=S0")


@pytest.mark.parametrize("pins", [["layers.0.weight"], {"layers.0.weight": 0}, {0: "B"}])
def test_pins_of_a_wrong_type_are_refused(pins: object) -> None:
    with pytest.raises(InputError, match="pins"):
        PlanOptions.from_dict({"pins": pins})


def test_costs_of_a_plans_strategy_are_predicted_as_in_the_plan() -> None:
    costs = predict_costs(graph_of("mlp-small"), FREE.strategy, load_cluster("local:4"))
    assert {key: FREE.document[key] for key in costs.to_dict()} == costs.to_dict()
