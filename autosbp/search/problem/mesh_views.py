"""Mesh views: the fine mesh with neighbouring axes of a level merged, so that a problem has few axes.

Layouts are chosen on a view. All views together hold every strategy that uses at most ``max_axes`` groups of axes,
which includes every data x tensor grid and every 3-D matmul. A mesh of at most ``max_axes`` prime axes is its own only
view."""

from __future__ import annotations

from itertools import combinations
from math import prod

from autosbp.sbp.mesh import Axis, Mesh

MAX_AXES = 3


def merge(mesh: Mesh, blocks: list[list[int]]) -> Mesh:
    """The mesh whose axes are these runs of neighbouring axes, each inside one level."""
    axes = []
    for block in blocks:
        members = [mesh.axes[at] for at in block]
        assert len({axis.level for axis in members}) == 1
        name = members[0].name if len(members) == 1 else f"{members[0].name}_{members[-1].name}"
        axes.append(Axis(name, prod(axis.size for axis in members), members[0].level))
    return Mesh(tuple(axes), mesh.level_counts)


def mesh_views(mesh: Mesh, max_axes: int = MAX_AXES) -> list[Mesh]:
    """All distinct views with ``max_axes`` axes (fewer are special cases); the mesh itself if it has no more."""
    if mesh.ndim <= max_axes:
        return [mesh]
    levels = sorted({axis.level for axis in mesh.axes})
    runs = [[at for at, axis in enumerate(mesh.axes) if axis.level == level] for level in levels]
    views: dict[tuple[int, ...], Mesh] = {}
    for cuts in _cut_counts([len(run) for run in runs], max_axes):
        for blocks in _partitions(runs, cuts):
            view = merge(mesh, blocks)
            views.setdefault(view.shape, view)
    return list(views.values())


def _cut_counts(lengths: list[int], max_axes: int) -> list[list[int]]:
    """Numbers of blocks per level, ``max_axes`` in all."""
    if len(lengths) == 1:
        return [[min(lengths[0], max_axes)]]
    outer, inner = lengths
    return [
        [first, max_axes - first] for first in range(1, max_axes) if first <= outer and max_axes - first <= inner
    ] or [[min(outer, max_axes - 1), min(inner, max_axes - min(outer, max_axes - 1))]]


def _partitions(runs: list[list[int]], cuts: list[int]) -> list[list[list[int]]]:
    """Every partition of each run into its number of contiguous blocks."""
    result: list[list[list[int]]] = [[]]
    for run, count in zip(runs, cuts, strict=True):
        pieces = []
        for places in combinations(range(1, len(run)), count - 1):
            bounds = [0, *places, len(run)]
            pieces.append([run[one:two] for one, two in zip(bounds, bounds[1:], strict=False)])
        result = [before + piece for before in result for piece in pieces]
    return result


def tensor_parallel_view(mesh: Mesh, num_tensor_axes: int) -> tuple[Mesh, frozenset[int]]:
    """The view of a Megatron-like grid: the innermost ``num_tensor_axes`` prime axes are tensor parallel.

    Returns:
        The mesh, and the indices of its tensor-parallel axes.
    """
    first = mesh.ndim - num_tensor_axes
    blocks: list[list[int]] = []
    for at, axis in enumerate(mesh.axes):
        new = not blocks or at == first or mesh.axes[blocks[-1][-1]].level != axis.level
        if new:
            blocks.append([at])
        else:
            blocks[-1].append(at)
    return merge(mesh, blocks), frozenset(index for index, block in enumerate(blocks) if block[0] >= first)
