"""Layouts as counts against explicit meshes: every assignment of axes to roles, every order in which splits nest."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import dijkstra

from autosbp.cluster.spec import Cluster, Device, Level
from autosbp.costmodel.boxing import RELABEL_S, BoxingModel
from autosbp.costmodel.network import NetworkModel
from autosbp.errors import InputError
from autosbp.sbp.boxing import layouts_of, nesting_orders, steps_among
from autosbp.sbp.layout import B, NdSbp, P, S, with_nesting
from autosbp.search import SEARCHERS, SearchOptions
from benchmarks.autoddl_fig8._count_boxing import CountBoxing, compositions, multiplicity
from benchmarks.autoddl_fig8._count_problem import product_chain

DEVICE = Device("device", "cuda", 1 << 34, {"float32": 1e13}, 5e11, op_overhead_s=2e-6)
FREE_COPIES = Device("device", "cuda", 1 << 34, {"float32": 1e13}, 1e30, op_overhead_s=0.0)
ROWS, WIDTHS = 64, (64, 32, 16, 8)

Roles = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""The axes of the rows, the columns and the sum of one product, in the order in which they nest."""


def boxing(num_nodes: int, device: Device = DEVICE) -> BoxingModel:
    cluster = Cluster("test", (Level("node", num_nodes, 3e-6, 5e9),), device)
    return BoxingModel(NetworkModel(cluster), cluster.mesh())


class Explicit:
    """Cheapest paths among all layouts of one tensor of 4-byte numbers, however nested."""

    def __init__(self, model: BoxingModel, shape: tuple[int, int], differentiable: bool) -> None:
        num_bytes = 4 * shape[0] * shape[1]
        plain = layouts_of(shape, model.mesh, differentiable)
        self.stops = tuple(nesting for layout in plain for nesting in nesting_orders(layout))
        self.at = {layout: at for at, layout in enumerate(self.stops)}
        steps = steps_among(self.stops, model.mesh)
        seconds = [model.step_cost(step, num_bytes, differentiable).total_s for _, _, step in steps]
        ends = ([one for one, _, _ in steps], [two for _, two, _ in steps])
        self.graph = csr_matrix((seconds, ends), shape=(len(self.stops),) * 2)

    def cost_s(self, sources: list[NdSbp], targets: list[NdSbp]) -> NDArray[np.float64]:
        found = dijkstra(self.graph, indices=[self.at[layout] for layout in sources])
        return np.asarray(found[:, [self.at[layout] for layout in targets]])

    def splits(self, in_mesh_order: bool) -> list[NdSbp]:
        return [
            layout
            for layout in self.stops
            if all(sbp.is_split for sbp in layout) and not (in_mesh_order and any(sbp.place >= 0 for sbp in layout))
        ]


def roles_of(num_axes: int, shapes: tuple[int, int, int], in_mesh_order: bool) -> list[Roles]:
    found = []
    most = [multiplicity(extent, 2, num_axes) for extent in shapes]
    for order in permutations(range(num_axes)):
        for counts in compositions(num_axes, 3).tolist():
            ends = (counts[0], counts[0] + counts[1])
            roles = (order[: ends[0]], order[ends[0] : ends[1]], order[ends[1] :])
            ordered = all(role == tuple(sorted(role)) for role in roles)
            if all(count <= limit for count, limit in zip(counts, most, strict=True)) and (
                ordered or not in_mesh_order
            ):
                found.append(roles)
    return found


def read(roles: Roles) -> NdSbp:
    layout = [B] * sum(map(len, roles))
    for dim, axes in ((0, roles[0]), (1, roles[2])):
        for axis in axes:
            layout[axis] = S(dim)
    return with_nesting(layout, {0: list(roles[0]), 1: list(roles[2])})


def made(roles: Roles) -> NdSbp:
    layout = [P] * sum(map(len, roles))
    for dim, axes in ((0, roles[0]), (1, roles[1])):
        for axis in axes:
            layout[axis] = S(dim)
    return with_nesting(layout, {0: list(roles[0]), 1: list(roles[1])})


def least(model: BoxingModel, in_mesh_order: bool) -> float:
    """The optimum over explicit layouts, by a pass from the first product to the last."""
    mesh = model.mesh
    cost, last = np.zeros(1), list[Roles]()
    for at, (before, behind) in enumerate(zip(WIDTHS, WIDTHS[1:], strict=False)):
        roles = roles_of(mesh.ndim, (ROWS, behind, before), in_mesh_order)
        table = Explicit(model, (ROWS, before), differentiable=at > 0)
        between, wanted = table.splits(in_mesh_order), [read(each) for each in roles]
        off = table.cost_s(between, wanted)
        onto = table.cost_s([made(each) for each in last], between) if at else np.zeros((1, len(between)))
        reached = (cost[:, None] + onto).min(axis=0)
        sync = [
            model.network.time_s(
                "all_reduce", 4 * before * behind / 2 ** (mesh.ndim - len(rows)), mesh.group_shape(rows)
            )
            for rows, _, _ in roles
        ]
        cost = (reached[:, None] + off).min(axis=0) + np.array(sync)
        last = roles
    return float(cost.min())


@pytest.mark.parametrize("num_nodes", [8, 16])
def test_the_optimum_over_counts_is_the_optimum_over_explicit_layouts(num_nodes: int) -> None:
    model = boxing(num_nodes)
    chain = product_chain(model, ROWS, WIDTHS, 4)
    best = SEARCHERS["exact"](chain.problem, SearchOptions())
    assert best.gap == 0.0
    assert best.cost_s == pytest.approx(least(model, in_mesh_order=False), rel=1e-9)
    assert best.cost_s <= least(model, in_mesh_order=True) * (1 + 1e-9)


@pytest.mark.parametrize("differentiable", [True, False])
def test_boxing_counts_costs_the_least_over_all_alignments(differentiable: bool) -> None:
    model, shape = boxing(8), (16, 4)
    table, explicit = CountBoxing(model, shape, 4 * 64, differentiable), Explicit(model, shape, differentiable)
    layouts = list(explicit.stops)
    everything = explicit.cost_s(layouts, layouts)
    plain = [tuple(S(sbp.dim) if sbp.is_split else sbp for sbp in layout) for layout in layouts]
    rows = np.array([[layout.count(state) for state in table.states] for layout in plain])
    ids = table.ids(rows)
    best = np.full((len(table.counts),) * 2, np.inf)
    np.minimum.at(best, (ids[:, None], ids[None, :]), everything)
    np.testing.assert_allclose(table.cost_s(table.counts, table.counts), best, rtol=1e-12)


def test_where_copies_are_free_a_path_over_counts_is_attained_from_any_layout() -> None:
    """Only the target is free: which of its axes hold a state, and how they nest."""
    model, shape = boxing(8, FREE_COPIES), (16, 16)
    table, explicit = CountBoxing(model, shape, 1024), Explicit(model, shape, True)
    layouts = list(explicit.stops)
    everything = explicit.cost_s(layouts, layouts)
    plain = [tuple(S(sbp.dim) if sbp.is_split else sbp for sbp in layout) for layout in layouts]
    ids = table.ids(np.array([[layout.count(state) for state in table.states] for layout in plain]))
    nearest = np.full((len(layouts), len(table.counts)), np.inf)
    np.minimum.at(nearest, (np.arange(len(layouts))[:, None], ids[None, :]), everything)
    expected = table.cost_s(table.counts, table.counts)[ids]
    np.testing.assert_allclose(nearest, expected, rtol=0.0, atol=8 * RELABEL_S)


def test_axes_that_differ_are_refused() -> None:
    cluster = Cluster("test", (Level("node", 2, 3e-6, 5e9), Level("gpu", 2, 1e-6, 1e11)), DEVICE)
    with pytest.raises(InputError, match="mesh"):
        product_chain(BoxingModel(NetworkModel(cluster), cluster.mesh()), ROWS, WIDTHS, 4)


def test_counts_that_do_not_add_up_are_refused() -> None:
    table = CountBoxing(boxing(8), (16, 4), 256)
    with pytest.raises(InputError, match="counts"):
        table.cost_s(table.rows(S0=[1]), table.rows(S0=[3]))
    with pytest.raises(InputError, match="counts"):
        table.cost_s(table.rows(S1=[3]), table.rows(S0=[3]))  # 4 columns are not split 8 ways
