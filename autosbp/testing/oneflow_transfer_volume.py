"""Bytes of the cheapest direct transfer between two disjoint device sets (OneFlow Table 2): what plans are compared with."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from autosbp.sbp.boxing import split_factor
from autosbp.sbp.layout import B, NdSbp, S
from autosbp.sbp.mesh import Mesh


@dataclass(frozen=True, slots=True)
class DirectTransfer:
    """The transfer with the fewest bytes that sends every rank what it needs.

    ``prepare`` is the source's layout before anything is sent; ``received_bytes`` the bytes over all receivers;
    ``total_bytes`` adds those of the source's own preparation.
    """

    prepare: NdSbp
    received_bytes: int
    total_bytes: int


def direct_transfer(
    shape: tuple[int, ...], num_bytes: int, src: NdSbp, src_mesh: Mesh, dst: NdSbp, dst_mesh: Mesh
) -> DirectTransfer:
    """The transfer between disjoint device sets.

    Partial producers first reduce-scatter among themselves, which moves the fewest bytes. If no dim can be scattered,
    they all-reduce, or consumers pull every part, whichever moves less.
    """
    pulled = _received_bytes(num_bytes, dst, dst_mesh)
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


def _received_bytes(num_bytes: int, dst: NdSbp, mesh: Mesh) -> int:
    holders = prod(axis.size for axis, sbp in zip(mesh.axes, dst, strict=True) if not sbp.is_partial)
    return num_bytes // split_factor(dst, mesh) * holders


def volume_bytes(kind: str, message: int, num_ranks: int, num_groups: int = 1) -> int:
    """Bytes that all ranks together send in one collective with message n (``costmodel.network``), ring algorithms.

    ``num_ranks`` counts the ranks of one group; for p2p, the senders.
    """
    factor = {"all_reduce": 2 * (num_ranks - 1), "p2p": num_ranks}.get(kind, num_ranks - 1)
    return factor * message * num_groups
