"""Cross-mesh resharding of a tensor: which rank sends which part to which rank (OneFlow Table 2).

The meshes may be disjoint, of different sizes, or share devices. Every destination rank receives each element of its
layout once, from a rank that holds it: itself if possible, else the nearest ones, evenly. Partial sums need every part;
if the destination is partial too, its ranks take the parts in turns. ``costmodel.cross_mesh_resharding`` chooses the
layouts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from autosbp.errors import InputError
from autosbp.program.placed_mesh import PlacedMesh, link_level
from autosbp.sbp.layout import NdSbp, format_nd_sbp, local_shape, shard_index
from autosbp.sbp.mesh import Mesh


@dataclass(frozen=True, slots=True)
class ElementBox:
    """A box of elements of the whole tensor: its start and its size in each dim."""

    start: tuple[int, ...]
    size: tuple[int, ...]

    @property
    def num_elements(self) -> int:
        return prod(self.size)

    def within(self, outer: ElementBox) -> tuple[slice, ...]:
        """Slices of this box in a tensor that covers ``outer``."""
        return tuple(
            slice(start - first, start - first + size)
            for start, size, first in zip(self.start, self.size, outer.start, strict=True)
        )


@dataclass(frozen=True, slots=True)
class TransferPiece:
    """A block that a source rank sends to a destination rank, which adds it to what it has."""

    source: int
    target: int
    block: ElementBox


def block_of(shape: tuple[int, ...], layout: NdSbp, mesh: Mesh, rank: int) -> ElementBox:
    """The part of the tensor that a rank holds."""
    size = local_shape(shape, layout, mesh)
    coordinate = mesh.coordinate(rank)
    start = tuple(extent * shard_index(dim, layout, mesh, coordinate) for dim, extent in enumerate(size))
    return ElementBox(start, size)


def plan_pieces(
    shape: tuple[int, ...], src: NdSbp, src_mesh: PlacedMesh, dst: NdSbp, dst_mesh: PlacedMesh, *, cut: bool
) -> tuple[TransferPiece, ...]:
    """All pieces of a transfer.

    If several ranks hold a needed block, each sends an equal part of it (``cut``), or the one that has sent least sends
    it all.

    Raises:
        InputError: for partial maxima and minima, since pieces are summed.
    """
    for layout in (src, dst):
        if any(sbp.reduction != "sum" for sbp in layout):
            raise InputError("layout", format_nd_sbp(layout), "reduce Pmax and Pmin before resharding")
    holders: dict[tuple[ElementBox, int], list[int]] = {}
    for rank in range(src_mesh.size):
        key = block_of(shape, src, src_mesh, rank), _part(src, src_mesh, rank)[0]
        holders.setdefault(key, []).append(rank)
    given = [0] * src_mesh.size
    pieces = []
    for target in range(dst_mesh.size):
        wanted, (turn, turns) = block_of(shape, dst, dst_mesh, target), _part(dst, dst_mesh, target)
        for (block, part), ranks in holders.items():
            common = _intersection(block, wanted)
            if common is None or part % turns != turn:
                continue
            near = _nearest(ranks, src_mesh, dst_mesh.device(target))
            shares = _cut(common, len(near)) if cut else [common]
            for source, share in zip(sorted(near, key=given.__getitem__), shares, strict=False):
                given[source] += share.num_elements
                pieces.append(TransferPiece(source, target, share))
    return tuple(pieces)


def _part(layout: NdSbp, mesh: Mesh, rank: int) -> tuple[int, int]:
    """Index of the part of a partial value that a rank holds, and the number of parts."""
    index, count = 0, 1
    for axis, sbp, place in zip(mesh.axes, layout, mesh.coordinate(rank), strict=True):
        if sbp.is_partial:
            index, count = index * axis.size + place, count * axis.size
    return index, count


def _intersection(one: ElementBox, two: ElementBox) -> ElementBox | None:
    start = tuple(map(max, one.start, two.start))
    ends = (min(a + m, b + n) for a, m, b, n in zip(one.start, one.size, two.start, two.size, strict=True))
    size = tuple(end - first for end, first in zip(ends, start, strict=True))
    return ElementBox(start, size) if all(extent > 0 for extent in size) else None


def _nearest(ranks: Sequence[int], mesh: PlacedMesh, device: int) -> list[int]:
    """The ranks closest to a device: on it, else connected by the innermost links."""

    def way(rank: int) -> int:
        here = mesh.device(rank)
        levels = len(mesh.cluster_counts)
        return 0 if here == device else levels - link_level(here, device, mesh.cluster_counts)

    shortest = min(map(way, ranks))
    return [rank for rank in ranks if way(rank) == shortest]


def _cut(block: ElementBox, parts: int) -> list[ElementBox]:
    """The block in equal parts along its longest dim; fewer if that dim is shorter than ``parts``."""
    if parts == 1 or not block.size:
        return [block]
    dim = max(range(len(block.size)), key=block.size.__getitem__)
    parts = min(parts, block.size[dim])
    ends = [block.size[dim] * at // parts for at in range(parts + 1)]
    return [
        ElementBox(
            (*block.start[:dim], block.start[dim] + low, *block.start[dim + 1 :]),
            (*block.size[:dim], high - low, *block.size[dim + 1 :]),
        )
        for low, high in zip(ends, ends[1:], strict=False)
    ]


def remote_messages(
    pieces: Sequence[TransferPiece], src_mesh: PlacedMesh, dst_mesh: PlacedMesh
) -> Mapping[tuple[int, int], tuple[TransferPiece, ...]]:
    """Pieces that travel, by (sending device, receiving device), sorted; each entry is one message."""
    found: dict[tuple[int, int], tuple[TransferPiece, ...]] = {}
    for piece in pieces:
        key = src_mesh.device(piece.source), dst_mesh.device(piece.target)
        if key[0] != key[1]:
            found[key] = (*found.get(key, ()), piece)
    return dict(sorted(found.items()))


def local_pieces(
    pieces: Sequence[TransferPiece], src_mesh: PlacedMesh, dst_mesh: PlacedMesh
) -> Iterator[TransferPiece]:
    """Pieces that stay on their device."""
    return (piece for piece in pieces if src_mesh.device(piece.source) == dst_mesh.device(piece.target))
