"""Sbp and NdSbp: layout of one tensor on the axes of a mesh (OneFlow section 3.1).

``B`` comes in two kinds, because a replicated value has two possible gradients. ``B`` feeds work that the axis
*divides*: each device holds a part of the gradient (gradient ``P``). ``I`` (invariant) feeds work that every device
repeats: each holds the whole gradient (gradient ``B``). Forward values are the same; ``I -> B`` costs nothing forward
and an all-reduce backward, ``B -> I`` sends nothing in either direction.

Axes that split one dim nest in mesh order, outermost first. Another order occurs only in intermediate layouts of boxing
paths; each split of such a dim then names its place in the nest, as in ``S0@1,S0@0``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from autosbp.errors import InputError

if TYPE_CHECKING:
    from autosbp.sbp.mesh import Mesh

MAX_DIM = 15
_TEXT = re.compile(r"S(0|[1-9]\d?)(?:@(\d))?|B|I|P(?:max|min)?")
_INSTANCES: dict[tuple[str, int, str, int], Sbp] = {}


@dataclass(frozen=True, slots=True, eq=False)
class Sbp:
    """One tensor on one mesh axis.

    ``kind`` is S, B, I or P; ``dim`` belongs to S, ``reduction`` to P. ``place`` is the axis's place in the nest of its
    dim, 0 = outermost, or -1 in mesh order. Equal values are the same object, since layouts are the keys of most
    tables.
    """

    kind: str
    dim: int = -1
    reduction: str = "sum"
    place: int = -1

    def __new__(cls, kind: str, dim: int = -1, reduction: str = "sum", place: int = -1) -> Sbp:
        key = (kind, dim, reduction, place)
        known = _INSTANCES.get(key)
        return _INSTANCES.setdefault(key, object.__new__(cls)) if known is None else known

    def __reduce__(self) -> tuple[type[Sbp], tuple[str, int, str, int]]:
        return Sbp, (self.kind, self.dim, self.reduction, self.place)

    def __str__(self) -> str:
        if self.kind == "S":
            return f"S{self.dim}" if self.place < 0 else f"S{self.dim}@{self.place}"
        return "P" + self.reduction if self.kind == "P" and self.reduction != "sum" else self.kind

    @property
    def is_split(self) -> bool:
        return self.kind == "S"

    @property
    def is_partial(self) -> bool:
        return self.kind == "P"

    @property
    def is_replicated(self) -> bool:
        """Whether every device holds the whole value (B or I)."""
        return self.kind in "BI"


B = Sbp("B")
I = Sbp("I")  # noqa: E741 - the letter that the algebra uses
P = Sbp("P")


def S(dim: int) -> Sbp:
    """Split along tensor dim ``dim``."""
    if not 0 <= dim <= MAX_DIM:
        raise InputError("dim", dim, f"expected 0 to {MAX_DIM}")
    return Sbp("S", dim)


NdSbp = tuple[Sbp, ...]


def parse_sbp(text: str) -> Sbp:
    """Parse ``S<dim>``, ``B``, ``I``, ``P``, ``Pmax`` or ``Pmin``."""
    sbp = _parsed(text)
    if sbp.place >= 0:
        raise InputError("sbp", text, "expected S<dim> without a nesting place")
    return sbp


def _parsed(text: str) -> Sbp:
    match = _TEXT.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise InputError("sbp", text, "expected S<dim>, B, I, P, Pmax or Pmin")
    if match.group(1) is not None:
        return replace(S(int(match.group(1))), place=int(match.group(2) or -1))
    return Sbp("P", reduction=text[1:] or "sum") if text[0] == "P" else Sbp(text)


def parse_nd_sbp(text: str, *, in_path: bool = False) -> NdSbp:
    """Parse one entry per mesh axis, separated by commas; ``-`` is the layout on a mesh without axes.

    The inverse of ``format_nd_sbp``. ``in_path`` also accepts intermediate layouts of boxing paths, in which axes that
    split one dim need not nest in mesh order.
    """
    if not isinstance(text, str):
        raise InputError(
            "layout", text, ("expected one of S<dim>, B, I, P, Pmax, Pmin per mesh axis, separated by commas")
        )
    layout = tuple(_parsed(part) for part in text.split(",")) if text not in ("", "-") else ()
    if not is_mesh_order(layout) and not (in_path and layout == _canonical(layout)):
        limit = "places 0, 1, ... only for axes out of mesh order" if in_path else "S<dim> without a place"
        raise InputError("layout", text, f"expected {limit}")
    return layout


def format_nd_sbp(layout: NdSbp) -> str:
    return ",".join(str(sbp) for sbp in layout) or "-"


def is_mesh_order(layout: NdSbp) -> bool:
    """Whether all axes that split one dim nest in mesh order."""
    return all(sbp.place < 0 for sbp in layout)


def split_axes(layout: NdSbp, dim: int) -> list[int]:
    """Axes that split ``dim``, outermost first."""
    axes = [axis for axis, sbp in enumerate(layout) if sbp.kind == "S" and sbp.dim == dim]
    return sorted(axes, key=lambda axis: layout[axis].place)


def with_nesting(layout: Sequence[Sbp], nests: Mapping[int, Sequence[int]]) -> NdSbp:
    """``layout`` with the axes of each dim in ``nests`` nested in that order, outermost first.

    Splits name their places only if the order is not the mesh's.
    """
    placed = list(layout)
    for dim, axes in nests.items():
        for place, axis in enumerate(axes):
            placed[axis] = Sbp("S", dim, place=-1 if list(axes) == sorted(axes) else place)
    return tuple(placed)


def _canonical(layout: NdSbp) -> NdSbp:
    """``layout`` as ``with_nesting`` writes it."""
    nests = {sbp.dim: split_axes(layout, sbp.dim) for sbp in layout if sbp.is_split}
    return with_nesting(layout, nests)


def gradient_sbp(sbp: Sbp) -> Sbp:
    """Layout of the gradient: S for S, B for P and I, P for B."""
    if sbp.kind == "S":
        return sbp
    return P if sbp.kind == "B" else B


def invariant_as_replicated(layout: NdSbp) -> NdSbp:
    """The layout for consumers that send no gradient back: I becomes B."""
    return tuple(B if sbp == I else sbp for sbp in layout)


def shard_counts(shape: tuple[int, ...], layout: NdSbp, mesh: Mesh) -> tuple[int, ...]:
    """Number of parts into which each dim is split."""
    counts = [1] * len(shape)
    for axis, sbp in zip(mesh.axes, layout, strict=True):
        if sbp.is_split:
            if sbp.dim >= len(shape):
                raise InputError("layout", format_nd_sbp(layout), f"expected splits of {len(shape)} dims")
            counts[sbp.dim] *= axis.size
    return tuple(counts)


def local_shape(shape: tuple[int, ...], layout: NdSbp, mesh: Mesh) -> tuple[int, ...]:
    """Shape of one device's part; raises ``InputError`` if a split does not divide its dim."""
    counts = shard_counts(shape, layout, mesh)
    for dim, (size, count) in enumerate(zip(shape, counts, strict=True)):
        if size % count:
            limit = f"expected a multiple of {count}, to split it as {format_nd_sbp(layout)}"
            raise InputError(f"dim {dim}", size, limit)
    return tuple(size // count for size, count in zip(shape, counts, strict=True))


def shard_index(dim: int, layout: NdSbp, mesh: Mesh, coordinate: tuple[int, ...]) -> int:
    """Index of the part of ``dim`` that the device at ``coordinate`` holds."""
    index = 0
    for axis in split_axes(layout, dim):
        index = index * mesh.axes[axis].size + coordinate[axis]
    return index


def to_torch(layout: NdSbp) -> list[Any]:
    """The layout as torch ``Placement`` objects; I becomes ``Replicate``, as its value is the same."""
    from torch.distributed.tensor import Partial, Replicate, Shard

    if not is_mesh_order(layout):
        raise InputError("layout", format_nd_sbp(layout), "expected splits that nest in mesh order")
    return [
        Shard(sbp.dim) if sbp.is_split else Partial(sbp.reduction) if sbp.is_partial else Replicate() for sbp in layout
    ]
