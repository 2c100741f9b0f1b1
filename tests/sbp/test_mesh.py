"""The mesh: row-major ranks, and process groups that partition them."""

from __future__ import annotations

from itertools import combinations

import pytest

from autosbp.cluster.spec import load_cluster
from autosbp.sbp.mesh import Axis, Mesh

MESHES = [load_cluster(spec).mesh() for spec in ("local:1", "local:4", "local:2x2", "summit:4", "dgx-a100-80g:2")]


def subsets(mesh: Mesh) -> list[tuple[int, ...]]:
    return [axes for size in range(mesh.ndim + 1) for axes in combinations(range(mesh.ndim), size)]


@pytest.mark.parametrize("mesh", MESHES, ids=lambda mesh: "x".join(map(str, mesh.shape)) or "1")
def test_coordinate_and_rank_are_inverse_and_row_major(mesh: Mesh) -> None:
    coordinates = [mesh.coordinate(rank) for rank in range(mesh.size)]
    assert coordinates == sorted(coordinates)
    assert [mesh.rank(coordinate) for coordinate in coordinates] == list(range(mesh.size))


@pytest.mark.parametrize("mesh", MESHES, ids=lambda mesh: "x".join(map(str, mesh.shape)) or "1")
def test_groups_of_any_axes_partition_the_ranks(mesh: Mesh) -> None:
    for axes in subsets(mesh):
        groups = mesh.all_groups(axes)
        assert sorted(rank for group in groups for rank in group) == list(range(mesh.size))
        assert {len(group) for group in groups} == {mesh.group_size(axes)}
        assert all(mesh.group_ranks(axes, rank) == group for group in groups for rank in group)


def test_groups_of_two_nodes_of_two() -> None:
    mesh = load_cluster("local:2x2").mesh()
    assert mesh.all_groups([0]) == [[0, 2], [1, 3]]
    assert mesh.all_groups([1]) == [[0, 1], [2, 3]]
    assert mesh.all_groups([0, 1]) == [[0, 1, 2, 3]]
    assert mesh.all_groups([]) == [[0], [1], [2], [3]]


def test_group_shape_counts_the_units_of_each_level() -> None:
    mesh = load_cluster("summit:4").mesh()  # n0:2 n1:2 | g0:2 g1:3
    assert mesh.group_shape([]) == (1, 1)
    assert mesh.group_shape([0, 1]) == (4, 1)
    assert mesh.group_shape([1, 3]) == (2, 3)
    assert mesh.group_shape([0, 1, 2, 3]) == (4, 6)


def test_axes_must_multiply_to_the_level_counts() -> None:
    with pytest.raises(AssertionError):
        Mesh((Axis("n0", 2, 0),), (3,))
