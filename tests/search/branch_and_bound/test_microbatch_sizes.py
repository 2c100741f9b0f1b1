"""Which microbatches are searched, and that the bound is of all of them, also where smaller ones take less of a sample."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from autosbp.api import PlanOptions, load_cluster, make_plan
from autosbp.costmodel.calibration import Calibration
from autosbp.costmodel.compute import ComputeModel, OpTime
from autosbp.errors import InfeasibleError
from autosbp.plan.schedules import GPIPE, ONE_F_ONE_B, RUNNABLE
from autosbp.search.branch_and_bound.microbatch_sizes import micro_batches
from autosbp.search.planner import Planner
from autosbp.utils.json_io import canonical
from tests.search.plans import graph_of

pytestmark = pytest.mark.integration

LARGE = 256


def planned(model: str, cluster: str, calibration: Calibration | None = None, **options: Any) -> dict[str, Any]:
    asked = PlanOptions(baselines=(), time_limit_s=60, **options)
    return make_plan(graph_of(model), load_cluster(cluster), calibration, asked).document


def timed(cluster: str) -> Calibration:
    """Products of many rows take three times as long for each as those of few, such as where caches end."""
    plain, ops = ComputeModel(load_cluster(cluster).device), {}
    for rows in (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096):
        for inner, outer in ((128, 128), (128, 512), (512, 128), (512, 512)):
            tensors = [{"d": "float32", "g": True, "t": shape} for shape in ([rows, inner], [outer, inner], [outer])]
            key = canonical({"op": "aten.linear.default", "args": tensors, "kwargs": {}}).decode()
            times = plain.key_times_s(key)
            assert times is not None
            ops[key] = OpTime(*(seconds * (3.0 if rows >= LARGE else 1.0) for seconds in times))
    return Calibration(load_cluster(cluster), "gloo", "relative", (), ops)


def test_where_ops_were_timed_every_microbatch_is_searched_and_bounded() -> None:
    calibration = timed("local:4")
    free = planned("gpt2-demo", "local:4", calibration, global_batch=64)
    each = {
        size: planned("gpt2-demo", "local:4", calibration, global_batch=64, micro_batch=size)
        for size in (64, 32, 16, 8, 4, 2, 1)
    }
    assert each[64]["step_time_s"] > 1.02 * min(found["step_time_s"] for found in each.values())
    assert free["step_time_s"] == min(found["step_time_s"] for found in each.values())
    assert free["lower_bound_s"] == pytest.approx(min(found["lower_bound_s"] for found in each.values()), rel=1e-9)
    assert free["lower_bound_s"] <= free["step_time_s"]


def test_stages_have_microbatches_in_their_multiples() -> None:
    """A schedule that asks for them has more to choose from than single samples."""
    options: dict[str, Any] = {"global_batch": 48, "stages": 3, "schedules": ("interleaved_1f1b",)}
    free = planned("mlp-small", "piz-daint:3", **options)
    for size in (16, 8, 4, 2, 1):
        found = planned("mlp-small", "piz-daint:3", micro_batch=size, **options)
        assert free["lower_bound_s"] <= found["step_time_s"] * (1 + 1e-12)
        assert free["step_time_s"] <= found["step_time_s"] * (1 + 1e-12)


@pytest.mark.parametrize("batch", [48, 64, 100])
def test_sizes_fill_the_stages_and_are_divisors(batch: int) -> None:
    context = Planner(
        graph_of("mlp-small"), load_cluster("local:4"), None, PlanOptions(global_batch=batch), None
    ).search.context
    for stages in (1, 2, 3, 4):
        sizes = context.micro_batches(stages)
        assert sizes == sorted(sizes, reverse=True) and sizes[-1] == 1
        assert all(batch % size == 0 and batch // size >= stages for size in sizes)
        if batch % stages == 0:
            assert all(batch // size % stages == 0 for size in sizes)


def test_sizes_divide_each_other_and_fill_the_stages() -> None:
    for whole in (1, 2, 6, 8, 48, 210, 1024):
        for stages in (1, 2, 3, 4, 8):
            for schedules in (RUNNABLE, (GPIPE.name,), (ONE_F_ONE_B.name,)):
                sizes = micro_batches(whole, stages, 8, schedules)
                assert all(
                    larger % smaller == 0 and larger > smaller for larger, smaller in pairwise((2 * whole, *sizes))
                )
                fills = [whole // size >= stages for size in sizes]
                takes_few = schedules == (GPIPE.name,) or (whole < stages and GPIPE.name in schedules)
                assert all(fills) or takes_few
                assert (sizes[:1] == (whole,)) == (takes_few or stages == 1)
                assert bool(sizes) == (takes_few or whole >= stages)


def test_a_pipeline_may_have_fewer_microbatches_than_stages_where_its_schedule_takes_them() -> None:
    options: dict[str, Any] = {"stages": 4, "schedules": ("gpipe",)}
    free = planned("mlp-small", "local:4", global_batch=8, **options)
    found = {
        size: planned("mlp-small", "local:4", global_batch=8, micro_batch=size, **options)["step_time_s"]
        for size in (8, 4, 2, 1)
    }
    assert free["step_time_s"] == min(found.values()) == found[8]  # messages' latencies are most of it
    assert planned("mlp-small", "local:4", global_batch=2, stages=4)["strategy"]["pipeline"]["schedule"] == "gpipe"
    with pytest.raises(InfeasibleError, match="schedules=1f1b and stages=4 exclude each other"):
        planned("mlp-small", "local:4", global_batch=2, stages=4, schedules=("1f1b",))
