"""Where the groups that are measured lie on the mesh: every group shape, and variants of it.

All groups of a shape run at once, as in a step, so links that they share are measured shared. Variants are: within the
innermost level, groups of neighbours beside groups of every k-th device; and one group alone, whose time beside that of
all tells what sharing costs.
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

    ``label`` is ``contiguous`` or ``strided`` where the shape has both, else None. A ``variant`` is no placement that plans
    are charged with.
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
    """Every shape of a group of two or more ranks, each with its variants, which follow it."""
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
    """Each distinct shape of a group of two or more ranks, with the first set of axes that has it: outermost ones.

    Shapes are enumerated level by level as products of axis sizes, so a mesh of many axes costs no power set.
    """
    return _combined(_levels(mesh, range(mesh.ndim)))


def _contiguous_axes(mesh: Mesh) -> dict[tuple[int, ...], tuple[int, ...]]:
    """As ``group_axes``, with innermost axes on the innermost level."""
    outermost, innermost = _levels(mesh, range(mesh.ndim)), _levels(mesh, reversed(range(mesh.ndim)))
    return _combined([*outermost[:-1], innermost[-1]])


def _levels(mesh: Mesh, order: range | Iterator[int]) -> list[dict[int, tuple[int, ...]]]:
    """Per level and count, the first set of that level's axes with this many units, as ``order`` meets the axes."""
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
