"""Where groups lie: every distinct shape once, with the variants that a shape has."""

from __future__ import annotations

from itertools import combinations

import pytest

from autosbp.calibration._placements import Placement, group_axes, placements
from autosbp.cluster.spec import load_cluster


@pytest.mark.parametrize("spec", ["local:1", "local:4", "local:2x2", "summit:6", "dgx-a100-80g:8", "gcp-a100-16:2"])
def test_shapes_are_those_of_all_subsets_of_axes(spec: str) -> None:
    mesh = load_cluster(spec).mesh()
    subsets = [axes for size in range(1, mesh.ndim + 1) for axes in combinations(range(mesh.ndim), size)]
    chosen = group_axes(mesh)
    assert set(chosen) == {mesh.group_shape(axes) for axes in subsets}
    assert all(mesh.group_shape(axes) == shape and list(axes) == sorted(axes) for shape, axes in chosen.items())
    assert [placement.group_shape for placement in placements(mesh, variants=False)] == list(chosen)
    for placement in placements(mesh):
        assert mesh.group_shape(placement.axes) == placement.group_shape


def test_largest_cluster_has_few_shapes() -> None:
    assert len(group_axes(load_cluster(f"dgx-h100:{2**17}").mesh())) == 18 * 4 - 1


def test_groups_that_share_a_link_are_also_measured_one_alone() -> None:
    found = list(placements(load_cluster("local:2x2").mesh()))
    assert [placement.name for placement in found] == [
        *("1x2", "1x2 one group alone", "2x1", "2x1 one group alone", "2x2"),
    ]


def test_groups_inside_a_node_of_four_are_measured_strided_and_contiguous() -> None:
    mesh = load_cluster("local:2x4").mesh()
    groups = {placement.name: mesh.all_groups(placement.axes) for placement in placements(mesh)}
    assert groups["1x2 strided"] == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert groups["1x2 contiguous"] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert groups["2x2 strided"] == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert groups["2x2 contiguous"] == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert "1x4 strided" not in groups and groups["1x4"] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert groups["2x1"] == [[0, 4], [1, 5], [2, 6], [3, 7]]


def test_a_flat_cluster_has_both_placements_too() -> None:
    mesh = load_cluster("local:4").mesh()
    found = [placement for placement in placements(mesh) if placement.num_groups is None]
    assert found == [
        Placement((2,), (0,), "strided"),
        Placement((2,), (1,), "contiguous"),
        Placement((4,), (0, 1)),
    ]
