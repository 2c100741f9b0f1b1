"""Gathers of parameters and reductions of gradients, on virtual ranks: equal to one device, and as charged, in order."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from autosbp.api import LogicalGraph, PlanOptions, load_cluster, make_plan
from autosbp.costmodel.memory import memory_bytes
from autosbp.costmodel.step_collectives import Collective, collectives
from autosbp.graph.dtype_cast import cast_floats
from autosbp.plan.plan import Strategy
from autosbp.program.gradient_buckets import AT_END
from autosbp.program.parameter_flow import parameter_flow
from autosbp.program.parameter_sharding import shard_parameters
from autosbp.program.program import Op
from autosbp.sbp.layout import parse_nd_sbp
from autosbp.testing.virtual_program import check_strategy
from autosbp.zoo import zoo_graph
from tests.executor.hand_made import tied_embedding

pytestmark = pytest.mark.integration

MICRO_BATCH = 4


@cache
def perceptron() -> LogicalGraph:
    return cast_floats(zoo_graph("mlp-small"), "float32", "float64")


@cache
def data_parallel(num_micro: int) -> Strategy:
    options = PlanOptions(global_batch=MICRO_BATCH * num_micro, micro_batch=MICRO_BATCH)
    return make_plan(perceptron(), load_cluster("local:2x2"), None, options).baseline_strategy("data_parallel")


def bound() -> LogicalGraph:
    return perceptron().bind(batch=MICRO_BATCH)


def charged(strategy: Strategy, phase: str) -> list[Collective]:
    return [call for call in collectives(bound(), strategy) if call.phase == phase]


@pytest.mark.parametrize("bucket_bytes", [1, 500_000, 25 * 2**20])
def test_gradients_in_one_or_many_buckets_are_those_of_one_device(bucket_bytes: int) -> None:
    strategy = replace(data_parallel(3), bucket_bytes=bucket_bytes)
    (issued, *_) = check_strategy(perceptron(), strategy)
    assert sum(call.ranks == (0, 1, 2, 3) for call in issued) == {1: 8, 500_000: 4, 25 * 2**20: 1}[bucket_bytes]


@pytest.mark.parametrize("gather", ["step", "use"])
@pytest.mark.parametrize("bucket_bytes", [1, 500_000, 25 * 2**20])
def test_parameters_stored_split_train_as_on_one_device(gather: str, bucket_bytes: int) -> None:
    strategy = shard_parameters(perceptron(), data_parallel(3), gather)
    check_strategy(perceptron(), replace(strategy, bucket_bytes=bucket_bytes))


@pytest.mark.parametrize("gather", ["step", "use"])
def test_parameters_split_inside_nodes_and_replicated_across_train_as_on_one_device(gather: str) -> None:
    """Hybrid sharding: gathered and scattered on the inner axis, what is left reduced over the outer one at the end."""
    whole = data_parallel(2)
    inner = {
        name: parse_nd_sbp("B,S0") if leaf.meta.sizes[0] > 16 else whole.parameters[name]
        for leaf in perceptron().parameters
        for name in (leaf.name,)
    }
    metas = {leaf.name: leaf.meta for leaf in perceptron().parameters}
    paths = {
        (metas[name].sizes, metas[name].num_bytes, True, stored, whole.parameters[name]): (
            stored,
            whole.parameters[name],
        )
        for name, stored in inner.items()
        if stored != whole.parameters[name]
    }
    strategy = replace(whole, parameters=inner, paths={**whole.paths, **paths}, gather=gather, bucket_bytes=600_000)
    check_strategy(perceptron(), strategy)
    assert any(bucket.ready == AT_END for bucket in parameter_flow(bound(), strategy).buckets)
    assert {call.axes for call in charged(strategy, "sync")} == {(0,), (0, 1)}


@pytest.mark.parametrize("gather", ["step", "use"])
@pytest.mark.parametrize("stored", ["S0,S0", "S1,B", "B,S0", "I,B", "S1,S0"])
def test_a_tied_parameter_trains_as_on_one_device(stored: str, gather: str) -> None:
    """Read by an embedding and by the head, in two layouts; in the second microbatch it is there already, or not."""
    check_strategy(*tied_embedding(stored, gather))


def test_once_a_step_parameters_and_gradients_move_once_and_in_each_use_always() -> None:
    num_micro = 3
    kinds = {}
    for gather in ("step", "use"):
        strategy = shard_parameters(perceptron(), data_parallel(num_micro), gather)
        calls = [call.kind for call in collectives(bound(), strategy) if call.cause in perceptron().parameter_names]
        kinds[gather] = (calls.count("all_gather"), calls.count("reduce_scatter"), calls.count("all_reduce"))
    assert kinds == {"step": (1, 1, 0), "use": (num_micro, num_micro, 0)}


def test_the_last_gathered_parameters_are_kept_and_others_regathered() -> None:
    strategy = replace(shard_parameters(perceptron(), data_parallel(1), "use"), bucket_bytes=1_100_000)
    flow = parameter_flow(bound(), strategy)
    assert len(flow.gathers) > 2
    assert [gather.kept for gather in flow.gathers] == [False] * (len(flow.gathers) - 1) + [True]
    # The first layer reads data: its weight is gathered again all the same, its place in the order is known then.
    forward = [call.cause for call in charged(strategy, "forward") if call.kind == "all_gather"]
    backward = [call.cause for call in charged(strategy, "backward") if call.kind == "all_gather"]
    assert backward == forward[-2::-1]


def test_the_next_message_is_sent_before_the_one_that_is_due_is_waited_for() -> None:
    strategy = replace(shard_parameters(perceptron(), data_parallel(1), "use"), bucket_bytes=1_100_000)
    flow = parameter_flow(bound(), strategy)
    sends = [flow.forward_gathers.get(gather.first, ()) for gather in flow.gathers]
    assert sends == [(0, 1), *((at,) for at in range(2, len(flow.gathers))), ()]


def test_once_a_step_all_messages_are_sent_before_the_first_is_waited_for() -> None:
    strategy = replace(shard_parameters(perceptron(), data_parallel(2), "step"), bucket_bytes=1_100_000)
    flow = parameter_flow(bound(), strategy)
    places = tuple(range(len(flow.gathers)))
    assert len(places) > 2 and flow.forward_gathers == {flow.gathers[0].first: places}
    assert not flow.backward_gathers and not flow.recompute_gathers
    calls = [call.kind for call in charged(strategy, "forward")]
    assert calls[: len(places)] == ["all_gather"] * len(places) and calls.count("all_gather") == len(places)


def test_a_bucket_is_issued_between_the_ops_of_backward_that_complete_it_and_the_next() -> None:
    strategy = replace(data_parallel(1), bucket_bytes=1)
    flow = parameter_flow(bound(), strategy)
    ready = {name: bucket.ready for bucket in flow.buckets for name in bucket.names}
    for at, item in enumerate(flow.items):
        if isinstance(item, Op) and item.node.op == "aten.linear.default":
            weight, bias = (read for read in item.reads[1:])
            assert ready[weight.name] == ready[bias.name] == at
    assert [bucket.ready for bucket in flow.buckets] == sorted(ready.values(), reverse=True)


def test_memory_counts_the_copies() -> None:
    whole = data_parallel(2)
    total = sum(leaf.meta.num_bytes for leaf in bound().parameters)
    step, use = (memory_bytes(bound(), shard_parameters(perceptron(), whole, gather)) for gather in ("step", "use"))
    assert "gathered" not in memory_bytes(bound(), whole)
    # All copies, their gradients over two microbatches, and the largest message on its way.
    assert 2 * total < step["gathered"] < 2.5 * total
    assert step["parameters"] == use["parameters"] == total // 4
    small = replace(shard_parameters(perceptron(), whole, "use"), bucket_bytes=1)
    largest = max(leaf.meta.num_bytes for leaf in bound().parameters)
    assert largest < memory_bytes(bound(), small)["gathered"] < 3.1 * largest


@pytest.mark.parametrize(
    ("field", "value"), [("gather", "layer"), ("gather", 1), ("bucket_bytes", 0), ("bucket_bytes", 0.5)]
)
def test_a_bad_flow_names_its_field(field: str, value: object) -> None:
    from autosbp.errors import InputError

    with pytest.raises(InputError) as caught:
        Strategy.from_dict({**data_parallel(1).to_dict(), field: value})
    assert caught.value.field == f"strategy.{field}"


def test_a_flow_survives_its_document_and_defaults_leave_none() -> None:
    plain = data_parallel(1)
    assert not {"gather", "bucket_bytes"} & set(plain.to_dict())
    other = replace(plain, gather="use", bucket_bytes=1000)
    assert Strategy.from_dict(other.to_dict()) == other
