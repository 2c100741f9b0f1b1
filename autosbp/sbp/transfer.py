"""Hand-over of a tensor between meshes: who sends which part to whom (OneFlow Table 2; DESIGN section 6).

The meshes may be disjoint, of different sizes, or share devices. Every rank of the destination gets each element that
its layout needs once, from a rank that holds it: from itself, else from the nearest ones, evenly. Of partial sums every
part is needed; a destination that is partial itself takes the parts in turns. ``costmodel.transfer`` chooses layouts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from autosbp.errors import InputError
from autosbp.sbp.boxing import split_factor
from autosbp.sbp.mesh import Mesh
from autosbp.sbp.placed_mesh import PlacedMesh, link_level
from autosbp.sbp.placement import B, NdSbp, S, format_nd_sbp, local_shape, shard_index


@dataclass(frozen=True, slots=True)
class Block:
    """A box of elements of the whole tensor: where it begins in each dim, and how far it reaches."""

    start: tuple[int, ...]
    size: tuple[int, ...]

    @property
    def num_elements(self) -> int:
        return prod(self.size)

    def within(self, outer: Block) -> tuple[slice, ...]:
        """Where the block lies in a tensor that is ``outer``."""
        return tuple(
            slice(start - first, start - first + size)
            for start, size, first in zip(self.start, self.size, outer.start, strict=True)
        )


@dataclass(frozen=True, slots=True)
class Piece:
    """What a rank of the source mesh gives a rank of the destination mesh, which adds it to what it has."""

    source: int
    target: int
    block: Block


def block_of(shape: tuple[int, ...], layout: NdSbp, mesh: Mesh, rank: int) -> Block:
    """The part of the tensor that a rank holds."""
    size = local_shape(shape, layout, mesh)
    coordinate = mesh.coordinate(rank)
    start = tuple(extent * shard_index(dim, layout, mesh, coordinate) for dim, extent in enumerate(size))
    return Block(start, size)


def deal(
    shape: tuple[int, ...], src: NdSbp, src_mesh: PlacedMesh, dst: NdSbp, dst_mesh: PlacedMesh, *, cut: bool
) -> tuple[Piece, ...]:
    """All pieces. Where several ranks hold what one needs, each gives an equal part of it (``cut``), or the one that has
    given least gives it all. Raises ``InputError`` for partial maxima and minima, which pieces do not add up to."""
    for layout in (src, dst):
        if any(sbp.reduction != "sum" for sbp in layout):
            raise InputError("layout", format_nd_sbp(layout), "partial maxima and minima are boxed first")
    holders: dict[tuple[Block, int], list[int]] = {}
    for rank in range(src_mesh.size):
        key = block_of(shape, src, src_mesh, rank), _part(src, src_mesh, rank)[0]
        holders.setdefault(key, []).append(rank)
    given = [0] * src_mesh.size
    pieces = []
    for target in range(dst_mesh.size):
        wanted, (turn, turns) = block_of(shape, dst, dst_mesh, target), _part(dst, dst_mesh, target)
        for (block, part), ranks in holders.items():
            common = _common(block, wanted)
            if common is None or part % turns != turn:
                continue
            near = _nearest(ranks, src_mesh, dst_mesh.device(target))
            shares = _cut(common, len(near)) if cut else [common]
            for source, share in zip(sorted(near, key=given.__getitem__), shares, strict=False):
                given[source] += share.num_elements
                pieces.append(Piece(source, target, share))
    return tuple(pieces)


def _part(layout: NdSbp, mesh: Mesh, rank: int) -> tuple[int, int]:
    """Which part of a partial value a rank holds, and of how many."""
    index, count = 0, 1
    for axis, sbp, place in zip(mesh.axes, layout, mesh.coordinate(rank), strict=True):
        if sbp.is_partial:
            index, count = index * axis.size + place, count * axis.size
    return index, count


def _common(one: Block, two: Block) -> Block | None:
    start = tuple(map(max, one.start, two.start))
    ends = (min(a + m, b + n) for a, m, b, n in zip(one.start, one.size, two.start, two.size, strict=True))
    size = tuple(end - first for end, first in zip(ends, start, strict=True))
    return Block(start, size) if all(extent > 0 for extent in size) else None


def _nearest(ranks: Sequence[int], mesh: PlacedMesh, device: int) -> list[int]:
    """Those of the ranks that have the shortest way to a device: none, else the innermost links."""

    def way(rank: int) -> int:
        here = mesh.device(rank)
        levels = len(mesh.cluster_counts)
        return 0 if here == device else levels - link_level(here, device, mesh.cluster_counts)

    shortest = min(map(way, ranks))
    return [rank for rank in ranks if way(rank) == shortest]


def _cut(block: Block, parts: int) -> list[Block]:
    """The block in equal parts along its longest dim; fewer where that is shorter."""
    if parts == 1 or not block.size:
        return [block]
    dim = max(range(len(block.size)), key=block.size.__getitem__)
    parts = min(parts, block.size[dim])
    ends = [block.size[dim] * at // parts for at in range(parts + 1)]
    return [
        Block(
            (*block.start[:dim], block.start[dim] + low, *block.start[dim + 1 :]),
            (*block.size[:dim], high - low, *block.size[dim + 1 :]),
        )
        for low, high in zip(ends, ends[1:], strict=False)
    ]


def messages(
    pieces: Sequence[Piece], src_mesh: PlacedMesh, dst_mesh: PlacedMesh
) -> Mapping[tuple[int, int], tuple[Piece, ...]]:
    """The pieces that travel, by sending and receiving device, in order; all between two devices are one message."""
    found: dict[tuple[int, int], tuple[Piece, ...]] = {}
    for piece in pieces:
        key = src_mesh.device(piece.source), dst_mesh.device(piece.target)
        if key[0] != key[1]:
            found[key] = (*found.get(key, ()), piece)
    return dict(sorted(found.items()))


def kept(pieces: Sequence[Piece], src_mesh: PlacedMesh, dst_mesh: PlacedMesh) -> Iterator[Piece]:
    """The pieces that stay on their device."""
    return (piece for piece in pieces if src_mesh.device(piece.source) == dst_mesh.device(piece.target))


@dataclass(frozen=True, slots=True)
class DirectTransfer:
    """The way with fewest bytes that sends every rank what it needs. ``prepare``: the source's layout before anything is
    sent; ``pulled_bytes``: bytes over all receivers; ``total_bytes``: those plus the source's own preparation."""

    prepare: NdSbp
    pulled_bytes: int
    total_bytes: int


def direct_transfer(
    shape: tuple[int, ...], num_bytes: int, src: NdSbp, src_mesh: Mesh, dst: NdSbp, dst_mesh: Mesh
) -> DirectTransfer:
    """Between disjoint device sets. Partial producers first reduce-scatter among themselves, which moves fewest bytes;
    where no dim can be scattered, they all-reduce, or consumers pull every part, whichever moves less."""
    pulled = _pulled(num_bytes, dst, dst_mesh)
    axes = [axis for axis, sbp in enumerate(src) if sbp.is_partial]
    if not axes:
        return DirectTransfer(src, pulled, pulled)
    size = prod(src_mesh.axes[axis].size for axis in axes)
    message, num_groups = num_bytes // split_factor(src, src_mesh), src_mesh.size // size
    dim = next((dim for dim, extent in enumerate(shape) if extent % size == 0 and _free(src, dim)), None)
    if dim is not None:
        prepare = tuple(S(dim) if axis in axes else sbp for axis, sbp in enumerate(src))
        return DirectTransfer(prepare, pulled, volume_bytes("reduce_scatter", message, size, num_groups) + pulled)
    reduced = tuple(B if axis in axes else sbp for axis, sbp in enumerate(src))
    whole = DirectTransfer(reduced, pulled, volume_bytes("all_reduce", message, size, num_groups) + pulled)
    parts = DirectTransfer(src, size * pulled, size * pulled)
    return min(parts, whole, key=lambda transfer: transfer.total_bytes)


def _free(layout: NdSbp, dim: int) -> bool:
    return all(not (sbp.is_split and sbp.dim == dim) for sbp in layout)


def _pulled(num_bytes: int, dst: NdSbp, mesh: Mesh) -> int:
    holders = prod(axis.size for axis, sbp in zip(mesh.axes, dst, strict=True) if not sbp.is_partial)
    return num_bytes // split_factor(dst, mesh) * holders


def volume_bytes(kind: str, message: int, num_ranks: int, num_groups: int = 1) -> int:
    """Bytes that all ranks together send in one collective with message n (``costmodel.network``), ring algorithms.

    ``num_ranks`` are those of one group; for p2p, those that send.
    """
    factor = {"all_reduce": 2 * (num_ranks - 1), "p2p": num_ranks}.get(kind, num_ranks - 1)
    return factor * message * num_groups
