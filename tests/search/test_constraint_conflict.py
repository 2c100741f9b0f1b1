"""What cannot be planned names a minimal set of constraints that exclude each other."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest

from autosbp.api import LogicalGraph, PlanOptions, capture, load_cluster, make_plan
from autosbp.errors import InfeasibleError, InputError
from autosbp.search.constraint_conflict import MAX_CONSTRAINTS, MAX_TRIALS, constraints, with_conflict

pytestmark = pytest.mark.integration


@cache
def graph_of(name: str) -> LogicalGraph:
    return capture(f"zoo:{name}")


def refused(model: str = "mlp-small", **options: Any) -> InfeasibleError:
    given = PlanOptions(baselines=(), **{"global_batch": 64, **options})
    with pytest.raises(InfeasibleError) as caught:
        make_plan(graph_of(model), load_cluster("local:2x2"), None, given)
    return caught.value


CASES: dict[str, tuple[Mapping[str, Any], set[str]]] = {
    "too little memory": ({"memory_limit_bytes": 1000, "stages": 1}, {"memory_limit_bytes=1000"}),
    "too few microbatches for the stages": (
        {"micro_batch": 64, "stages": 4, "storage": "step", "schedules": ("1f1b",)},
        {"micro_batch=64", "stages=4", "schedules=1f1b"},
    ),
    "less memory than whole parameters take": (
        {"memory_limit_bytes": 6_000_000, "pins": {"*": "B"}, "stages": 1, "micro_batch": 16},
        {"memory_limit_bytes=6000000", "pins.*=B"},
    ),
    "pins of one op that do not go together": (
        {"pins": {"layers.0.weight": "S0", "layers.0.bias": "B", "linear_2": "P"}},
        {"pins.layers.0.weight=S0", "pins.layers.0.bias=B"},
    ),
    "a microbatch that a pinned split does not divide": (
        {"micro_batch": 2, "pins": {"linear_0": "S0", "linear_1": "S1"}},
        {"micro_batch=2", "pins.linear_0=S0"},
    ),
}


@pytest.mark.some(2)
@pytest.mark.parametrize("name", CASES)
def test_the_conflict_is_a_minimal_set(name: str) -> None:
    options, conflict = CASES[name]
    error = refused(**options)
    assert set(error.conflict) == conflict
    for constraint in conflict:
        assert constraint in str(error)
    for left_out in conflict:
        option, _, value = left_out.partition("=")
        fewer = dict(options)
        if option.startswith("pins."):
            fewer["pins"] = {key: layout for key, layout in fewer["pins"].items() if f"pins.{key}={layout}" != left_out}
        else:
            del fewer[option]
        given = PlanOptions(baselines=(), **{"global_batch": 64, **fewer})
        others = conflict - {left_out}
        kept = {each.text for each in constraints(given)}
        assert others <= kept and value
        make_plan(graph_of("mlp-small"), load_cluster("local:2x2"), None, given)


@pytest.mark.parametrize("pins", [{}, {"linear_0": "B"}])
def test_stages_that_the_batch_does_not_fill_are_named(pins: dict[str, str]) -> None:
    error = refused(micro_batch=64, stages=4, schedules=("1f1b",), pins=pins)
    assert (error.constraint, error.limit) == ("stages", 4)
    assert "can fill at most 1 stages" in error.detail


def test_a_batch_that_does_not_split_is_named_where_no_microbatch_was_asked_for() -> None:
    error = refused(global_batch=7, data_parallel=4)
    assert (error.constraint, error.limit, error.conflict) == ("global_batch", 7, ("data_parallel=4",))
    assert "no microbatch splits evenly: of 7 samples, no even split" in error.detail
    assert refused(global_batch=7, data_parallel=4, micro_batch=7).constraint == "micro_batch"


def test_the_memory_that_is_named_is_enough() -> None:
    error = refused(memory_limit_bytes=1_800_000, stages=1)
    assert error.constraint == "memory_limit_bytes"
    assert error.needed is not None and f"; {int(error.needed)} is sufficient" in str(error)
    options = PlanOptions(64, baselines=(), stages=1, memory_limit_bytes=int(error.needed))
    found = make_plan(graph_of("mlp-small"), load_cluster("local:2x2"), None, options)
    assert found.document["memory_bytes_per_device"] <= error.needed


@pytest.mark.clock
@pytest.mark.parametrize(("options", "limit_s"), [({"recompute": 2}, 20.0), ({"memory_limit_bytes": 100_000}, 2.0)])
def test_a_model_without_blocks_is_refused_soon(options: dict[str, Any], limit_s: float) -> None:
    """Of experts that all add to the loss; eliminations over three axes took most of a minute, each."""
    began = time.monotonic()
    given = PlanOptions(global_batch=32, baselines=(), time_limit_s=limit_s, **options)
    with pytest.raises(InfeasibleError) as caught:
        make_plan(graph_of("moe-small"), load_cluster("local:2x4"), None, given)
    assert caught.value.conflict == tuple(f"{name}={value}" for name, value in options.items())
    assert time.monotonic() - began < 15.0


def test_no_time_is_infeasible_and_less_is_refused() -> None:
    with pytest.raises(InfeasibleError, match="time_limit_s = 0"):
        PlanOptions(time_limit_s=0.0)
    with pytest.raises(InputError, match="time_limit_s"):
        PlanOptions(time_limit_s=-1.0)


def test_infeasibility_without_constraints_names_none() -> None:
    error = InfeasibleError("memory_limit_bytes", 10, 20)
    options = PlanOptions(stages=2, storage="use")
    assert with_conflict(error, options, lambda _: False) is error
    assert with_conflict(error, PlanOptions(), lambda _: True) is error
    many = PlanOptions(pins={f"op{at}": "B" for at in range(MAX_CONSTRAINTS + 1)})
    assert with_conflict(error, many, lambda left: len(left.pins) <= MAX_CONSTRAINTS) is error  # all are needed


@pytest.mark.parametrize("needed", [(0, 999), (3, 500, 501), (700,)])
def test_of_many_constraints_the_few_that_conflict_are_found_with_few_trials(needed: tuple[int, ...]) -> None:
    pins = {f"op{at}": "B" for at in range(1000)}
    conflict, trials = {f"op{at}" for at in needed}, 0

    def feasible(left: PlanOptions) -> bool:
        nonlocal trials
        trials += 1
        return not conflict <= set(left.pins)

    found = with_conflict(InfeasibleError("pins", "", None), PlanOptions(pins=pins, stages=2), feasible)
    assert set(found.conflict) == {f"pins.{name}=B" for name in conflict}
    assert trials <= MAX_TRIALS + MAX_CONSTRAINTS + 1


def test_constraints_that_are_not_needed_are_dropped_whatever_their_order() -> None:
    options = PlanOptions(stages=2, storage="use", micro_batch=4, global_batch=8, schedules=("gpipe",))
    error = InfeasibleError("micro_batch", 4, None)
    found = with_conflict(error, options, lambda left: not (left.stages == 2 and left.schedules == ("gpipe",)))
    assert found.conflict == ("schedules=gpipe", "stages=2")
    assert str(found).endswith(
        "schedules=gpipe and stages=2 exclude each other: dropping any one of them makes planning feasible"
    )
    alone = with_conflict(error, options, lambda left: left.storage != "use")
    assert str(alone).endswith("dropping storage=use makes planning feasible")


def test_constraints_that_say_nothing_without_others_are_dropped_before_those() -> None:
    """Pins with a schedule and without stages are no request; the schedule is not needed, nor are the stages."""
    options = PlanOptions(stages=2, schedules=("gpipe",), pins={"a": "B", "b": "S0"})
    found = with_conflict(InfeasibleError("pins", "", None), options, lambda left: len(left.pins) < 2)
    assert found.conflict == ("pins.a=B", "pins.b=S0")


def test_the_same_conflict_is_found_again() -> None:
    options: dict[str, Any] = {"memory_limit_bytes": 6_000_000, "pins": {"*": "B", "linear_1": "B"}, "micro_batch": 16}
    assert refused(**options).conflict == refused(**options).conflict
