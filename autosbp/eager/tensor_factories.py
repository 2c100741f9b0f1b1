"""Factory functions of placed tensors."""

from __future__ import annotations

import torch

from autosbp.eager.placement import Placement, SbpLike
from autosbp.eager.tensor import PlacedTensor, make_placed_tensor
from autosbp.errors import InputError
from autosbp.executor.parameter_shards import shard
from autosbp.sbp.layout import format_nd_sbp, shard_counts


def distribute(
    tensor: torch.Tensor, placement: Placement, sbp: SbpLike, *, requires_grad: bool = False
) -> PlacedTensor:
    """A leaf with the values of a whole tensor, which is equal on every process; each keeps a copy of its part.

    A partial layout has the values on the first rank, and zeros on others.

    Raises:
        InputError: the tensor cannot have this layout there.
    """
    whole = tensor.detach()
    layout = placement.layout(sbp, tuple(whole.shape), whole.dtype, tracked=requires_grad)
    if any(entry.reduction != "sum" for entry in layout):
        raise InputError(
            "sbp", format_nd_sbp(layout), ("expected S<dim>, B, I or P; create Pmax and Pmin with from_local")
        )
    local = None
    if placement.runtime is not None:
        local = shard(whole, layout, placement.mesh, placement.runtime.coordinate).to(placement.device)
        local.requires_grad_(requires_grad)
    return make_placed_tensor(local, placement, layout, tuple(whole.shape), whole.dtype, requires_grad)


def from_local(local: torch.Tensor, placement: Placement, sbp: SbpLike) -> PlacedTensor:
    """The tensor whose part on this process is ``local``, to which its gradient flows.

    Outside of the placement only the shape and dtype of ``local`` are used: those of a part.

    Raises:
        InputError: such parts cannot have this layout there.
    """
    part = tuple(local.shape)
    any_size = (0,) * len(part)  # parts are even, whatever their size
    layout = placement.layout(sbp, any_size, local.dtype, tracked=local.requires_grad)
    shape = tuple(size * count for size, count in zip(part, shard_counts(part, layout, placement.mesh), strict=True))
    here = local if placement.runtime is not None else None
    return make_placed_tensor(here, placement, layout, shape, local.dtype, local.requires_grad)


def randn(
    *shape: int, placement: Placement, sbp: SbpLike, dtype: torch.dtype | None = None, requires_grad: bool = False
) -> PlacedTensor:
    """Normal random numbers, the same in every layout.

    Every process draws all of them from torch's default generator, which must have the same seed everywhere, and keeps
    its part.
    """
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
