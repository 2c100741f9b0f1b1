"""Placements of the measured groups on the mesh: every group shape, and its variants.

All groups of a shape run at once, as in a step, so links that they share are measured under contention. Variants are
groups of neighbours instead of every k-th device within the innermost level, and one group alone, whose time compared
with that of all groups shows the cost of contention.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod

from autosbp.sbp.mesh import Mesh


@dataclass(frozen=True, slots=True)
class Placement:
    """Groups over the mesh axes ``axes``: all of them, or the first ``num_groups``.

    ``label`` is ``contiguous`` or ``strided`` if the shape has both, else None. A ``variant`` is a placement that plans
    are never charged with.
    """

    group_shape: tuple[int, ...]
    axes: tuple[int, ...]
    label: str | None = None
    num_groups: int | None = None

    @property
    def variant(self) -> bool:
        return self.num_groups is not None or self.label == "contiguous"

    @property
    def name(self) -> str:
        shape = "x".join(map(str, self.group_shape))
        alone = None if self.num_groups is None else "one group alone"
        return " ".join(part for part in (shape, self.label, alone) if part)


def placements(mesh: Mesh, variants: bool = True) -> Iterator[Placement]:
    """Every shape of a group of two or more ranks, each followed by its variants."""
    strided = group_axes(mesh)
    contiguous = _contiguous_axes(mesh)
    for shape, axes in strided.items():
        both = contiguous[shape] != axes
        first = Placement(shape, axes, "strided" if both else None)
        yield first
        if not variants:
            continue
        if mesh.size > prod(shape):
            yield Placement(shape, axes, first.label, 1)
        if both:
            yield Placement(shape, contiguous[shape], "contiguous")


def group_axes(mesh: Mesh) -> dict[tuple[int, ...], tuple[int, ...]]:
    """Each distinct shape of a group of two or more ranks, with the outermost set of axes that has it.

    Shapes are enumerated level by level as products of axis sizes, which avoids the power set of the axes.
    """
    return _combined(_levels(mesh, range(mesh.ndim)))


def _contiguous_axes(mesh: Mesh) -> dict[tuple[int, ...], tuple[int, ...]]:
    """Like ``group_axes``, but with the innermost axes of the innermost level."""
    outermost, innermost = _levels(mesh, range(mesh.ndim)), _levels(mesh, reversed(range(mesh.ndim)))
    return _combined([*outermost[:-1], innermost[-1]])


def _levels(mesh: Mesh, order: range | Iterator[int]) -> list[dict[int, tuple[int, ...]]]:
    """Per level and unit count, the first set of the level's axes with this count, visiting axes in ``order``."""
    levels: list[dict[int, tuple[int, ...]]] = [{1: ()} for _ in mesh.level_counts]
    for index in order:
        axis = mesh.axes[index]
        known = levels[axis.level]
        for count, axes in list(known.items()):
            known.setdefault(count * axis.size, (*axes, index))
    return levels


def _combined(levels: list[dict[int, tuple[int, ...]]]) -> dict[tuple[int, ...], tuple[int, ...]]:
    chosen = {}
    for counts in product(*(sorted(level) for level in levels)):
        axes = tuple(sorted(axis for level, count in zip(levels, counts, strict=True) for axis in level[count]))
        if axes:
            chosen[counts] = axes
    return chosen
