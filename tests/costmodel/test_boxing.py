"""The boxing planner: every pair connected, optimal against brute force, costs that add up, paths that are right."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from functools import cache
from itertools import product
from math import prod

import numpy as np
import pytest
import torch

from autosbp.cluster.spec import Cluster, load_cluster
from autosbp.costmodel.boxing import BoxingModel, BoxingTable
from autosbp.costmodel.network import AlphaBeta, NetworkModel
from autosbp.errors import InputError
from autosbp.sbp.boxing import (
    PMAX,
    PMIN,
    BoxingStep,
    has_single_reduction,
    is_even,
    layouts_of,
    nesting_orders,
    step_between,
)
from autosbp.sbp.layout import B, I, NdSbp, P, S, Sbp, is_mesh_order, parse_nd_sbp
from autosbp.sbp.mesh import Axis, Mesh
from autosbp.testing.virtual import plain_mesh
from autosbp.testing.virtual_boxing import check_paths
from benchmarks.boxing import CASES as CASES_OF_ONEFLOW
from benchmarks.boxing import TENSORS, Case, Tensor, costs, measure

pytestmark = pytest.mark.integration

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
    assert table.layouts[: table.num_sums] == layouts_of(shape, table.mesh, differentiable)
    extrema = table.layouts[table.num_sums :]
    assert differentiable == (not extrema)
    for reduction in ("max", "min"):
        sums = [tuple(P if sbp.reduction == reduction else sbp for sbp in layout) for layout in extrema]
        assert {layout for layout in sums if P in layout and not {PMAX, PMIN} & set(layout)} == {
            layout for layout in table.layouts[: table.num_sums] if not differentiable and P in layout
        }
    assert np.isfinite(table.cost_s).all()
    assert (np.diag(table.cost_s) == 0).all()
    assert (table.cost_s[~np.eye(len(table.layouts), dtype=bool)] > 0).all()


class RandomNetwork(NetworkModel):
    """Another latency and rate for each collective over each set of axes, over five and six orders of magnitude."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        super().__init__(cluster)
        self.seed = seed

    def alpha_beta(self, kind: str, group_shape: tuple[int, ...]) -> AlphaBeta:
        rng = random.Random(f"{self.seed} {kind} {group_shape}")
        return AlphaBeta(10 ** rng.uniform(-7, -2), 10 ** rng.uniform(-12, -6), False)


@cache
def brute_force_steps(
    states: tuple[Sbp, ...], mesh: Mesh
) -> tuple[tuple[NdSbp, ...], tuple[tuple[int, int, BoxingStep], ...]]:
    """Every layout in every order of nests, and ``step_between`` of every two, whatever the planner enumerates."""
    stops = tuple(nesting for layout in product(states, repeat=mesh.ndim) for nesting in nesting_orders(layout))
    steps = (
        (one, two, step_between(stops[one], stops[two], mesh)) for one, two in product(range(len(stops)), repeat=2)
    )
    return stops, tuple((one, two, step) for one, two, step in steps if step is not None)


MESHES = ((2,), (4,), (2, 2), (2, 3), (3, 2), (4, 2), (2, 2, 2))


def random_case(seed: int) -> tuple[BoxingModel, tuple[int, ...], int, bool]:
    """A model of a random network on a random mesh over one or two levels, a shape, its bytes, and whether gradients
    flow."""
    rng = random.Random(seed)
    sizes = rng.choice(MESHES)
    outer = rng.randint(0, len(sizes) - 1)
    counts = (prod(sizes[:outer]), prod(sizes[outer:])) if outer else (prod(sizes),)
    mesh = Mesh(tuple(Axis(f"a{at}", size, int(at >= outer > 0)) for at, size in enumerate(sizes)), counts)
    shape = tuple(rng.choice((1, 2, 4, 6, 12, 24)) for _ in range(rng.randint(0, 1 if len(sizes) == 3 else 2)))
    cluster = load_cluster("local:" + "x".join(map(str, counts)))
    model = BoxingModel(RandomNetwork(cluster, seed), mesh, copy_bytes_per_s=10 ** rng.uniform(8, 12))
    return model, shape, int(10 ** rng.uniform(1, 9)), rng.random() < 0.5


def test_paths_are_never_dearer_than_any_of_up_to_four_steps() -> None:
    """Brute force on 200 random networks, meshes, shapes and sizes."""
    for seed in range(200):
        model, shape, size, differentiable = random_case(seed)
        table = model.table(shape, size, differentiable)
        states = tuple(S(dim) for dim, extent in enumerate(shape) if extent > 1)
        partial = (B, I, P) if differentiable else (B, P, PMAX, PMIN)
        stops, steps = brute_force_steps((*states, *partial), model.mesh)
        direct = np.full((len(stops), len(stops)), np.inf)
        np.fill_diagonal(direct, 0.0)
        even = [is_even(shape, stop, model.mesh) and has_single_reduction(stop) for stop in stops]
        for one, two, step in steps:
            if even[one] and even[two]:
                direct[one, two] = model.step_cost(step, size, differentiable).total_s
        here = [at for at, stop in enumerate(stops) if even[at] and is_mesh_order(stop)]
        here.sort(key=lambda at: any(sbp.reduction != "sum" for sbp in stops[at]))
        assert [stops[at] for at in here] == list(table.layouts)
        rng = random.Random(seed)
        for source in rng.sample(here, min(4, len(here))):
            planned = table.cost_s[table.index[stops[source]]]
            reached = direct[source]  # with no step or one
            for count in range(2, 20):
                reached = (reached[:, None] + direct).min(axis=0)
                if count == 4:
                    assert (planned <= reached[here] * (1 + 1e-12)).all(), (seed, stops[source])
            # and every cost is that of some path
            np.testing.assert_allclose(planned, reached[here], rtol=1e-12, err_msg=str(seed))


@pytest.mark.parametrize("tensor", [tensor for tensor in TENSORS if len(tensor.axes) == 2], ids=str)
def test_oneflows_choice_is_never_cheaper_and_often_dearer(tensor: Tensor) -> None:
    row = measure(tensor)
    assert row.dearer == 0
    assert row.cheaper > row.pairs / 8 and row.cheaper_than_both > row.pairs / 8
    assert row.max_ratio > 4


PLANNED = {
    ("P,P", "B,B"): (1.05, "P,P -> S0,S0 -> B,B"),
    ("P,P", "S0,B"): (1.2, "P,P -> P,S0 -> S0@1,S0@0 -> S0,S0 -> S0,B"),
    ("S0,S0", "B,S0"): (1.3, "S0,S0 -> S0,S1 -> B,S1 -> B,S0"),
    ("S0,P", "B,S0"): (4.0, "S0,P -> S0,S0 -> S0@1,S0@0 -> B,S0"),
    ("S0,S0", "S1,S0"): (1.9, "S0,S0 -> S0@1,S0@0 -> S1,S0"),
    ("S0,S1", "S1,S0"): (math.inf, "S0,S1 -> S0,S0 -> S0@1,S0@0 -> S1,S0"),
    ("I,S1", "S1,I"): (5.8, "I,S1 -> I,S0 -> S1,S0 -> S1,I"),
    ("P,I", "B,I"): (1.25, "P,I -> S0,I -> B,I"),
}
"""At least how many times dearer OneFlow's choice is, and the planned path."""


@pytest.mark.parametrize("case", CASES_OF_ONEFLOW, ids=lambda case: f"{case.src}-{case.dst}")
def test_where_oneflows_choice_is_dearer(case: Case) -> None:
    found = costs(case)
    least, path = PLANNED[case.src, case.dst]
    theirs = math.inf if found.oneflow_s is None else found.oneflow_s
    assert theirs >= least * found.planned_s
    assert found.path == path


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


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.bool], ids=str)
@pytest.mark.parametrize(
    ("sizes", "shape", "kind"),
    [((2, 2), (12, 6), "reduce_scatter"), ((2, 3), (12, 6), "reduce_scatter"), ((2, 2), (5, 7), "all_reduce")],
)
@pytest.mark.some(3)
def test_paths_of_partial_maxima_and_minima_are_right_on_virtual_ranks(
    sizes: tuple[int, ...], shape: tuple[int, ...], kind: str, dtype: torch.dtype
) -> None:
    table = table_on(sizes, shape, prod(shape) * dtype.itemsize, False)
    paths: dict[tuple[BoxingStep, ...], bool] = {}
    for src, dst in product(table.layouts, repeat=2):
        one_byte = dtype == torch.bool and P in (*src, *dst)
        if src != dst and {PMAX, PMIN} & {*src, *dst} and not one_byte:
            paths[table.path(src, dst)] = True
    assert kind in {step.forward for path in paths for step in path if step.reduction != "sum"}
    check_paths(list(paths), shape, table.mesh, dtype)


def test_bools_are_never_partial_sums() -> None:
    table = model_of("local:2x2").table((8, 4), 32, False)
    summed = [P in layout for layout in table.layouts]
    assert np.isinf(table.cost_s[np.ix_(summed, np.logical_not(summed))]).all()
    assert np.isinf(table.cost_s[np.ix_(np.logical_not(summed), summed)]).all()
    whole = np.logical_not(summed)
    assert np.isfinite(table.cost_s[np.ix_(whole, whole)]).all()
    with pytest.raises(InputError, match="P,B"):
        table.path(parse_nd_sbp("P,B"), parse_nd_sbp("B,B"))


def test_partial_maxima_with_a_gradient_are_refused() -> None:
    with pytest.raises(InputError, match="without a gradient"):
        model_of("local:2x2").plan((PMAX, B), (B, B), (8, 4), 256)
    with pytest.raises(InputError, match="alone"):
        model_of("local:2x2").plan((PMAX, P), (B, B), (8, 4), 256, differentiable=False)


EXECUTED = [
    ((2, 2), (8, 4), True, (10**3, 10**8)),
    ((2, 3), (12, 6), True, (10**3, 10**8)),
    ((3, 2), (12, 6), True, (10**8,)),
    ((2, 2, 2), (16,), False, (10**8,)),
]


@pytest.mark.parametrize(("sizes", "shape", "differentiable", "num_bytes"), EXECUTED)
@pytest.mark.some(2)
def test_planned_paths_between_all_layouts_are_right_on_virtual_ranks(
    sizes: tuple[int, ...], shape: tuple[int, ...], differentiable: bool, num_bytes: tuple[int, ...]
) -> None:
    """Forward and backward; small and large messages take other paths."""
    paths: dict[tuple[BoxingStep, ...], bool] = {}
    for size in num_bytes:
        table = table_on(sizes, shape, size, differentiable)
        layouts = table.layouts[: table.num_sums]
        paths |= {table.path(src, dst): True for src, dst in product(layouts, repeat=2) if src != dst}
    check_paths(list(paths), shape, table.mesh)


def test_paths_on_three_axes_that_stop_in_other_nests_are_right_on_virtual_ranks() -> None:
    table = table_on((2, 2, 2), (16, 8), 10**8, True)
    pairs = random.Random(0).sample(list(product(table.layouts, repeat=2)), 2000)
    paths = [table.path(src, dst) for src, dst in pairs if src != dst]
    chosen = [path for path in paths if not all(is_mesh_order(step.dst) for step in path)][:100]
    assert len(chosen) == 100
    check_paths(chosen, (16, 8), table.mesh)


def table_on(sizes: tuple[int, ...], shape: tuple[int, ...], size: int, differentiable: bool) -> BoxingTable:
    mesh = plain_mesh(*sizes)
    return BoxingModel(NetworkModel(load_cluster(f"local:{mesh.size}")), mesh).table(shape, size, differentiable)


@pytest.mark.parametrize(
    ("shape", "kinds"),
    [((8, 3), ["p2p", "all_gather"]), ((8, 1024), ["all_to_all", "all_gather", "all_to_all"])],
)
def test_a_change_of_the_outer_axis_permutes_or_exchanges_another_dim(shape: tuple[int, ...], kinds: list[str]) -> None:
    """Whichever is cheaper: a permute over slow nodes, or two exchanges inside them; and where no other dim can be
    split, the permute."""
    cluster = load_cluster("dgx-a100-80g:2x4")
    mesh = Mesh((Axis("n", 2, 0), Axis("g", 4, 1)), (2, 4))
    model = BoxingModel(NetworkModel(cluster), mesh)
    steps = model.plan(parse_nd_sbp("S0,S0"), parse_nd_sbp("B,S0"), shape, 2**28)
    assert [step.forward for step in steps] == kinds


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
