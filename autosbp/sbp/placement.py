"""Sbp and NdSbp: how one tensor lies on the axes of a mesh (OneFlow section 3.1; DESIGN section 2).

``B`` comes in two kinds, because a replicated value has two possible gradients: ``B`` is used by work that the axis
*divides*, so each device holds a part of the gradient (gradient ``P``); ``I`` (invariant) is a B whose every device
does the same work, so each holds the whole gradient (gradient ``B``). Forward values are the same; ``I -> B`` costs
nothing forward and an all-reduce backward, ``B -> I`` nothing at all on the wire.

Axes that split one dim nest in mesh order, outermost first. Layouts in which they nest in another order are stops of
boxing paths only: every split of such a dim names its place in the nest, as in ``S0@1,S0@0``.
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
_REDUCTIONS = ("sum", "max", "min")
_KNOWN: dict[tuple[str, int, str, int], Sbp] = {}


@dataclass(frozen=True, slots=True, eq=False)
class Sbp:
    """One tensor on one mesh axis. ``kind`` is S, B, I or P; ``dim`` belongs to S, ``reduction`` to P. ``place`` is this
    axis's place in the nest of its dim, 0 outermost; -1 in mesh order. Equal ones are one object: layouts are the keys of
    most tables."""

    kind: str
    dim: int = -1
    reduction: str = "sum"
    place: int = -1

    def __new__(cls, kind: str, dim: int = -1, reduction: str = "sum", place: int = -1) -> Sbp:
        key = (kind, dim, reduction, place)
        known = _KNOWN.get(key)
        return _KNOWN.setdefault(key, object.__new__(cls)) if known is None else known

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
        """Every device holds the whole value (B or I)."""
        return self.kind in "BI"


B = Sbp("B")
I = Sbp("I")  # noqa: E741 - the letter that the algebra uses
P = Sbp("P")


def S(dim: int) -> Sbp:
    """Split along tensor dim ``dim``."""
    if not 0 <= dim <= MAX_DIM:
        raise InputError("dim", dim, f"0 to {MAX_DIM} is expected")
    return Sbp("S", dim)


NdSbp = tuple[Sbp, ...]


def parse_sbp(text: str) -> Sbp:
    """``S0``, ``B``, ``I``, ``P``, ``Pmax`` or ``Pmin``."""
    sbp = _parsed(text)
    if sbp.place >= 0:
        raise InputError("sbp", text, "S<dim> without a place in a nest is expected")
    return sbp


def _parsed(text: str) -> Sbp:
    match = _TEXT.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise InputError("sbp", text, "S<dim>, B, I, P, Pmax or Pmin is expected")
    if match.group(1) is not None:
        return replace(S(int(match.group(1))), place=int(match.group(2) or -1))
    return Sbp("P", reduction=text[1:] or "sum") if text[0] == "P" else Sbp(text)


def parse_nd_sbp(text: str, *, in_path: bool = False) -> NdSbp:
    """The inverse of ``format_nd_sbp``; one entry per mesh axis, separated by commas, ``-`` on a mesh without axes.

    ``in_path`` admits the stops of paths, in which axes that split one dim need not nest in mesh order.
    """
    if not isinstance(text, str):
        raise InputError("layout", text, "one of S<dim>, B, I, P, Pmax, Pmin per mesh axis, separated by commas")
    layout = tuple(_parsed(part) for part in text.split(",")) if text not in ("", "-") else ()
    if not is_mesh_order(layout) and not (in_path and layout == _canonical(layout)):
        limit = "places 0, 1, ... of axes in another order than the mesh's" if in_path else "S<dim> without a place"
        raise InputError("layout", text, f"{limit} is expected")
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


def nested(layout: Sequence[Sbp], nests: Mapping[int, Sequence[int]]) -> NdSbp:
    """``layout`` with the axes of each dim in ``nests`` in that order, outermost first; places are named only where the
    order is not the mesh's."""
    placed = list(layout)
    for dim, axes in nests.items():
        for place, axis in enumerate(axes):
            placed[axis] = Sbp("S", dim, place=-1 if list(axes) == sorted(axes) else place)
    return tuple(placed)


def _canonical(layout: NdSbp) -> NdSbp:
    """``layout`` as ``nested`` writes it."""
    nests = {sbp.dim: split_axes(layout, sbp.dim) for sbp in layout if sbp.is_split}
    return nested(layout, nests)


def gradient(sbp: Sbp) -> Sbp:
    """Layout of the gradient: S of S, B of P and of I, P of B (DESIGN section 5)."""
    if sbp.kind == "S":
        return sbp
    return P if sbp.kind == "B" else B


def without_invariants(layout: NdSbp) -> NdSbp:
    """The layout as readers see it that send no gradient back: I is B."""
    return tuple(B if sbp == I else sbp for sbp in layout)


def shard_counts(shape: tuple[int, ...], layout: NdSbp, mesh: Mesh) -> tuple[int, ...]:
    """In how many parts each dim is split."""
    counts = [1] * len(shape)
    for axis, sbp in zip(mesh.axes, layout, strict=True):
        if sbp.is_split:
            if sbp.dim >= len(shape):
                raise InputError("layout", format_nd_sbp(layout), f"splits of {len(shape)} dims are expected")
            counts[sbp.dim] *= axis.size
    return tuple(counts)


def local_shape(shape: tuple[int, ...], layout: NdSbp, mesh: Mesh) -> tuple[int, ...]:
    """Shape of one device's part; a dim that does not divide is an ``InputError``."""
    counts = shard_counts(shape, layout, mesh)
    for dim, (size, count) in enumerate(zip(shape, counts, strict=True)):
        if size % count:
            limit = f"a multiple of {count} is expected to split it as {format_nd_sbp(layout)}"
            raise InputError(f"dim {dim}", size, limit)
    return tuple(size // count for size, count in zip(shape, counts, strict=True))


def shard_index(dim: int, layout: NdSbp, mesh: Mesh, coordinate: tuple[int, ...]) -> int:
    """Which part of ``dim`` the device at ``coordinate`` holds."""
    index = 0
    for axis in split_axes(layout, dim):
        index = index * mesh.axes[axis].size + coordinate[axis]
    return index


def to_torch(layout: NdSbp) -> list[Any]:
    """The same layout as torch ``Placement`` objects; I becomes ``Replicate`` (its value is the same)."""
    from torch.distributed.tensor import Partial, Replicate, Shard

    if not is_mesh_order(layout):
        raise InputError("layout", format_nd_sbp(layout), "splits that nest in mesh order are expected")
    return [
        Shard(sbp.dim) if sbp.is_split else Partial(sbp.reduction) if sbp.is_partial else Replicate() for sbp in layout
    ]


def from_torch(placements: Any) -> NdSbp:
    """The inverse of ``to_torch``; ``Replicate`` becomes B. Strided shards and other reductions have no Sbp."""
    from torch.distributed.tensor import Partial, Replicate, Shard

    layout = []
    for placement in placements:
        if type(placement) is Shard:
            layout.append(S(placement.dim))
        elif type(placement) is Partial and placement.reduce_op in _REDUCTIONS:
            layout.append(Sbp("P", reduction=placement.reduce_op))
        elif type(placement) is Replicate:
            layout.append(B)
        else:
            raise InputError("placement", repr(placement), "Shard, Replicate or Partial of sum, max or min is expected")
    return tuple(layout)
