"""How placed tensors are made."""

from __future__ import annotations

import torch

from autosbp.eager.placement import Placement, SbpLike
from autosbp.eager.tensor import PlacedTensor, placed
from autosbp.errors import InputError
from autosbp.executor.parameters import shard
from autosbp.sbp.placement import format_nd_sbp, shard_counts


def distribute(
    tensor: torch.Tensor, placement: Placement, sbp: SbpLike, *, requires_grad: bool = False
) -> PlacedTensor:
    """A leaf of the values of a whole tensor, which every process gives alike; each keeps a copy of its part. A partial
    layout has the values on the first rank, and zeros on others.

    Raises:
        InputError: for a layout that the tensor cannot have there.
    """
    whole = tensor.detach()
    layout = placement.layout(sbp, tuple(whole.shape), whole.dtype, tracked=requires_grad)
    if any(entry.reduction != "sum" for entry in layout):
        raise InputError("sbp", format_nd_sbp(layout), "S<dim>, B, I or P is expected; partial extrema come from_local")
    local = None
    if placement.runtime is not None:
        local = shard(whole, layout, placement.mesh, placement.runtime.coordinate).to(placement.device)
        local.requires_grad_(requires_grad)
    return placed(local, placement, layout, tuple(whole.shape), whole.dtype, requires_grad)


def from_local(local: torch.Tensor, placement: Placement, sbp: SbpLike) -> PlacedTensor:
    """The tensor whose part on this process is ``local``, to which its gradient flows. Outside of the placement only the
    shape and type of ``local`` count: those of a part.

    Raises:
        InputError: for a layout that such parts cannot have there.
    """
    part = tuple(local.shape)
    any_size = (0,) * len(part)  # parts are even, whatever their size
    layout = placement.layout(sbp, any_size, local.dtype, tracked=local.requires_grad)
    shape = tuple(size * count for size, count in zip(part, shard_counts(part, layout, placement.mesh), strict=True))
    here = local if placement.runtime is not None else None
    return placed(here, placement, layout, shape, local.dtype, local.requires_grad)


def randn(
    *shape: int, placement: Placement, sbp: SbpLike, dtype: torch.dtype | None = None, requires_grad: bool = False
) -> PlacedTensor:
    """Normal numbers, the same in every layout: every process draws all of them from torch's default generator, which must
    be seeded alike everywhere, and keeps its part."""
    return distribute(torch.randn(shape, dtype=dtype), placement, sbp, requires_grad=requires_grad)


def zeros(
    *shape: int, placement: Placement, sbp: SbpLike, dtype: torch.dtype | None = None, requires_grad: bool = False
) -> PlacedTensor:
    """Zeros."""
    return distribute(torch.zeros(shape, dtype=dtype), placement, sbp, requires_grad=requires_grad)


def ones(
    *shape: int, placement: Placement, sbp: SbpLike, dtype: torch.dtype | None = None, requires_grad: bool = False
) -> PlacedTensor:
    """Ones."""
    return distribute(torch.ones(shape, dtype=dtype), placement, sbp, requires_grad=requires_grad)
