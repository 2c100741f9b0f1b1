"""Boxing between disjoint device sets, and the total volume of any boxing (OneFlow Table 2; DESIGN section 6).

Between disjoint sets each consumer pulls what it needs from producers that hold it. Partial producers first
reduce-scatter among themselves, which moves fewest bytes; where no dim can be scattered, they all-reduce, or consumers
pull every part, whichever moves less. A P consumer set is filled on one rank only.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from autosbp.sbp.boxing import split_factor
from autosbp.sbp.mesh import Mesh
from autosbp.sbp.placement import B, NdSbp, S


@dataclass(frozen=True, slots=True)
class Transfer:
    """``prepare``: the producers' layout before anything is pulled; ``pulled_bytes``: bytes over all consumers;
    ``total_bytes``: those plus the producers' own preparation."""

    prepare: NdSbp
    pulled_bytes: int
    total_bytes: int


def plan_transfer(
    shape: tuple[int, ...], num_bytes: int, src: NdSbp, src_mesh: Mesh, dst: NdSbp, dst_mesh: Mesh
) -> Transfer:
    """The cheapest of these ways, in bytes moved, to hand a tensor to a disjoint device set."""
    pulled = _pulled(num_bytes, dst, dst_mesh)
    axes = [axis for axis, sbp in enumerate(src) if sbp.is_partial]
    if not axes:
        return Transfer(src, pulled, pulled)
    size = prod(src_mesh.axes[axis].size for axis in axes)
    message, num_groups = num_bytes // split_factor(src, src_mesh), src_mesh.size // size
    dim = next((dim for dim, extent in enumerate(shape) if extent % size == 0 and _free(src, dim)), None)
    if dim is not None:
        prepare = tuple(S(dim) if axis in axes else sbp for axis, sbp in enumerate(src))
        return Transfer(prepare, pulled, volume_bytes("reduce_scatter", message, size, num_groups) + pulled)
    reduced = tuple(B if axis in axes else sbp for axis, sbp in enumerate(src))
    whole = Transfer(reduced, pulled, volume_bytes("all_reduce", message, size, num_groups) + pulled)
    parts = Transfer(src, size * pulled, size * pulled)
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
