"""Boxing between disjoint device sets, and the total volume of any boxing (OneFlow Table 2; DESIGN section 6).

Between disjoint sets each consumer pulls what it needs from producers that hold it. Partial producers are first
reduce-scattered among themselves, which moves fewest bytes; a P consumer set is filled on one rank only.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from autosbp.sbp.boxing import split_factor
from autosbp.sbp.mesh import Mesh
from autosbp.sbp.placement import NdSbp, S


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
    """The cheapest way, in bytes moved, to hand a tensor to a disjoint device set."""
    prepare, moved = src, 0
    axes = [axis for axis, sbp in enumerate(src) if sbp.is_partial]
    if axes:
        size = prod(src_mesh.axes[axis].size for axis in axes)
        dim = next((dim for dim, extent in enumerate(shape) if extent % size == 0 and _free(src, dim)), None)
        if dim is None:
            # Nothing divides: every consumer pulls every producer's part.
            return Transfer(src, size * _pulled(num_bytes, dst, dst_mesh), size * _pulled(num_bytes, dst, dst_mesh))
        prepare = tuple(S(dim) if axis in axes else sbp for axis, sbp in enumerate(src))
        groups = src_mesh.size // size
        moved = (size - 1) * (num_bytes // split_factor(src, src_mesh)) * groups
    pulled = _pulled(num_bytes, dst, dst_mesh)
    return Transfer(prepare, pulled, moved + pulled)


def _free(layout: NdSbp, dim: int) -> bool:
    return all(not (sbp.is_split and sbp.dim == dim) for sbp in layout)


def _pulled(num_bytes: int, dst: NdSbp, mesh: Mesh) -> int:
    holders = prod(
        axis.size for axis, sbp in zip(mesh.axes, dst, strict=True) if not sbp.is_partial
    )
    return num_bytes // split_factor(dst, mesh) * holders


def volume_bytes(kind: str, message: int, num_ranks: int, num_groups: int = 1) -> int:
    """Bytes that all ranks together send in one collective with message n (``costmodel.network``), ring algorithms."""
    factor = {"all_reduce": 2 * (num_ranks - 1), "p2p": num_ranks}.get(kind, num_ranks - 1)
    return factor * message * num_groups
