"""The boxing planner: every pair connected, optimal against brute force, costs that add up, paths that are right."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from autosbp.cluster import load_cluster
from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.network import NetworkModel
from autosbp.errors import InputError
from autosbp.sbp.boxing import layouts_of, step_between
from autosbp.sbp.mesh import Axis, Mesh
from autosbp.sbp.placement import B, I, P, S, parse_nd_sbp
from autosbp.testing.virtual_steps import check_steps

# cluster, tensor: one level, two levels, an odd axis, three axes; extents that some splits do not divide
CASES = [
    ("local:4", (4, 8)),
    ("local:2x2", (4, 6)),
    ("local:2x3", (6, 4)),
    ("dgx-a100-80g:2x4", (8, 4)),
    ("summit:2x2", (2, 9)),
    ("local:2x2", ()),
]


def model_of(spec: str) -> BoxingModel:
    cluster = load_cluster(spec)
    return BoxingModel(NetworkModel(cluster), cluster.mesh())


def num_bytes(shape: tuple[int, ...]) -> int:
    return 8 * int(np.prod(shape)) if shape else 8


@pytest.mark.parametrize(("spec", "shape"), CASES)
@pytest.mark.parametrize("differentiable", [True, False])
def test_every_two_layouts_are_connected(spec: str, shape: tuple[int, ...], differentiable: bool) -> None:
    table = model_of(spec).table(shape, num_bytes(shape), differentiable)
    assert table.layouts == layouts_of(shape, table.mesh, differentiable)
    assert np.isfinite(table.cost_s).all()
    assert (np.diag(table.cost_s) == 0).all()
    assert (table.cost_s[~np.eye(len(table.layouts), dtype=bool)] > 0).all()


@pytest.mark.parametrize("size", [1e3, 1e9])
@pytest.mark.parametrize(("spec", "shape"), CASES)
def test_paths_are_never_dearer_than_any_of_up_to_four_steps(spec: str, shape: tuple[int, ...], size: float) -> None:
    """Brute force over ``step_between`` of every pair, whatever the planner enumerates; small and large messages."""
    model = model_of(spec)
    table = model.table(shape, int(size), True)
    count = len(table.layouts)
    direct = np.full((count, count), np.inf)
    np.fill_diagonal(direct, 0.0)
    for one, two in product(range(count), repeat=2):
        step = step_between(table.layouts[one], table.layouts[two], model.mesh)
        if step is not None:
            direct[one, two] = model.step_cost(step, int(size), True).total_s
    twice = _min_plus(direct, direct)
    within_four = _min_plus(twice, twice)
    assert (table.cost_s <= direct * (1 + 1e-12)).all()
    assert (table.cost_s <= twice * (1 + 1e-12)).all()
    assert (table.cost_s <= within_four * (1 + 1e-12)).all()
    # and every cost is that of some path: closing the brute force under composition changes nothing any more
    closed = _min_plus(within_four, within_four)
    np.testing.assert_allclose(table.cost_s, closed, rtol=1e-12)


def _min_plus(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    return np.array([(row[:, None] + right).min(axis=0) for row in left])


@pytest.mark.parametrize(("spec", "shape"), CASES)
def test_planned_paths_start_end_and_cost_what_the_table_says(spec: str, shape: tuple[int, ...]) -> None:
    model = model_of(spec)
    table = model.table(shape, num_bytes(shape), True)
    rng = random.Random(0)
    for src, dst in rng.sample(list(product(table.layouts, repeat=2)), min(300, len(table.layouts) ** 2)):
        steps = model.plan(src, dst, shape, num_bytes(shape))
        ends = [src, *(step.dst for step in steps)]
        assert [step.src for step in steps] == ends[:-1] and ends[-1] == dst
        total = sum(model.step_cost(step, num_bytes(shape), True).total_s for step in steps)
        assert total == pytest.approx(table.cost_s[table.index[src], table.index[dst]], rel=1e-12)
        assert (steps == ()) == (src == dst)


@pytest.mark.parametrize(
    ("spec", "shape"), [case for case in CASES if case[0] in ("local:4", "local:2x2", "local:2x3")]
)
def test_planned_paths_are_right_on_virtual_ranks(spec: str, shape: tuple[int, ...]) -> None:
    model = model_of(spec)
    table = model.table(shape, num_bytes(shape), True)
    rng = random.Random(1)
    for src, dst in rng.sample(list(product(table.layouts, repeat=2)), min(60, len(table.layouts) ** 2)):
        if src != dst:
            check_steps(model.plan(src, dst, shape, num_bytes(shape)), shape, model.mesh)


def test_a_change_of_the_outer_axis_goes_through_the_inner_one() -> None:
    model = model_of("local:2x2")
    steps = model.plan(parse_nd_sbp("S0,S0"), parse_nd_sbp("B,S0"), (8, 3), 192)
    assert [step.forward for step in steps] == ["all_gather", "p2p"]


def test_neighbouring_axes_are_one_collective_where_that_is_cheaper() -> None:
    model = model_of("local:4")
    # rings of 2 have fewer latencies than one of 4, and send more where the whole is reduced
    assert {len(step.axes) for step in model.plan((P, P), (B, B), (7, 7), 8)} == {1}
    (step,) = model.plan((P, P), (B, B), (7, 7), 2**30)
    assert (step.forward, step.axes) == ("all_reduce", (0, 1))


def test_large_partial_sums_over_nodes_are_reduced_in_the_node_first() -> None:
    """Hierarchical all-reduce is found, not built in: scatter inside, all-reduce outside, gather inside."""
    cluster = load_cluster("gcp-a100-16:2")
    mesh = Mesh((Axis("n", 2, 0), Axis("g", 16, 1)), (2, 16))
    steps = BoxingModel(NetworkModel(cluster), mesh).plan((P, P), (I, I), (4096, 4096), 2**26)
    actions = [("reduce_scatter", (1,)), ("all_reduce", (0,)), ("all_gather", (1,))]
    assert [(step.forward, step.axes) for step in steps] == actions


def test_a_layout_that_is_not_even_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="S0,B"):
        model_of("local:2x2").plan((S(0), B), (B, B), (3, 4), 96)


def test_a_tensor_without_gradient_pays_no_backward() -> None:
    model = model_of("local:4")
    step = step_between((S(0), S(0)), (B, B), model.mesh)
    assert step is not None
    assert model.step_cost(step, 1024, False).backward_comm_s == 0.0 < model.step_cost(step, 1024, True).backward_comm_s


def test_steps_of_less_than_ten_nanoseconds_are_still_steps() -> None:
    cluster = load_cluster("local:2")
    quick = replace(cluster, device=replace(cluster.device, op_overhead_s=0.0))
    table = BoxingModel(NetworkModel(quick), quick.mesh()).table((2,), 8, False)
    assert table.cost_s[table.index[B,], table.index[P,]] < 1e-8


def test_ids_find_layouts_and_mark_uneven_ones() -> None:
    table = model_of("local:2x2").table((4, 3), 96, True)
    states = [S(0), S(1), B]
    rows = np.array(list(product(range(3), repeat=2)), dtype=np.int64)
    for row, found in zip(rows, table.ids(states, rows), strict=True):
        layout = tuple(states[at] for at in row)
        assert found == table.index.get(layout, -1)


def test_a_faster_network_never_makes_a_boxing_dearer() -> None:
    slow = load_cluster("local:2x2")
    levels = tuple(
        replace(level, latency_s=level.latency_s / 2, bandwidth_bytes_per_s=level.bandwidth_bytes_per_s * 2)
        for level in slow.levels
    )
    fast = replace(slow, levels=levels)
    one, two = (BoxingModel(NetworkModel(cluster), slow.mesh()).table((8, 8), 2**20, True) for cluster in (slow, fast))
    assert (two.cost_s <= one.cost_s * (1 + 1e-12)).all()
