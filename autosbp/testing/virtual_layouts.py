"""Shards of tensors: create random shards in a layout, and check that shards equal a whole tensor.

The layout of a gradient is ``gradient_sbp`` of the value's: S stays S, B and P exchange, I becomes B. So gradients of B are
summed, gradients of I are taken from one rank, and gradients of P must be equal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product

import torch

from autosbp.executor.parameter_shards import shard, unshard
from autosbp.sbp.layout import B, NdSbp, gradient_sbp, local_shape
from autosbp.sbp.mesh import Mesh

FLOAT64_TOLERANCE = 1e-10
_JOINS: Mapping[str, Callable[..., torch.Tensor]] = {"sum": torch.sum, "max": torch.amax, "min": torch.amin}


def gradient_layout(layout: NdSbp) -> NdSbp:
    """The layout of the gradient of a tensor in ``layout``."""
    return tuple(gradient_sbp(sbp) for sbp in layout)


def random_shards(whole: torch.Tensor, layout: NdSbp, mesh: Mesh, generator: torch.Generator) -> list[torch.Tensor]:
    """Every rank's shard of ``whole``.

    Partial sums of floats are random numbers that add up to the whole. Other partial sums are on the first rank, as
    with data that is sliced locally. Of partial maxima and minima, one random rank holds each element's value.
    """
    reduction = next((sbp.reduction for sbp in layout if sbp.is_partial), "sum")
    if not whole.is_floating_point() and reduction == "sum":
        return [shard(whole, layout, mesh, mesh.coordinate(rank)) for rank in range(mesh.size)]
    partial = [axis for axis, sbp in enumerate(layout) if sbp.is_partial]
    local = tuple(B if sbp.is_partial else sbp for sbp in layout)
    places = list(product(*(range(mesh.axes[axis].size) for axis in partial)))
    if reduction == "sum":
        terms = {place: torch.randn(whole.shape, generator=generator, dtype=whole.dtype) for place in places[1:]}
        terms[places[0]] = whole - sum(terms.values(), torch.zeros_like(whole))
    else:
        terms = _extremes(whole, places, reduction, generator)
    parts = []
    for rank in range(mesh.size):
        coordinate = mesh.coordinate(rank)
        parts.append(shard(terms[tuple(coordinate[axis] for axis in partial)], local, mesh, coordinate))
    return parts


def _extremes(
    whole: torch.Tensor, places: list[tuple[int, ...]], reduction: str, generator: torch.Generator
) -> dict[tuple[int, ...], torch.Tensor]:
    """A tensor for each place; each element equals the whole's at one place, and is less (or more) at the others."""
    owner = torch.randint(0, len(places), whole.shape, generator=generator)
    terms = {}
    for at, place in enumerate(places):
        other = torch.randint(1, 9, whole.shape, generator=generator).to(whole.dtype)
        if whole.dtype == torch.bool:
            worse = torch.full_like(whole, reduction == "min")
        else:
            worse = whole - other if reduction == "max" else whole + other
        terms[place] = torch.where(owner == at, whole, worse)
    return terms


def assert_shards_match(
    parts: list[torch.Tensor],
    layout: NdSbp,
    mesh: Mesh,
    whole: torch.Tensor,
    what: str,
    tolerance: float = FLOAT64_TOLERANCE,
) -> None:
    """Check that ``parts`` are ``whole`` in ``layout``: replicas agree, partial values combine, shards match."""
    partial = [axis for axis, sbp in enumerate(layout) if sbp.is_partial]
    join = _JOINS[next((layout[axis].reduction for axis in partial), "sum")]
    local = tuple(B if sbp.is_partial else sbp for sbp in layout)
    shape = local_shape(tuple(whole.shape), layout, mesh)
    for rank, part in enumerate(parts):
        assert tuple(part.shape) == shape, f"{what}: rank {rank} has shape {tuple(part.shape)}, not {shape}"
        assert part.dtype == whole.dtype, f"{what}: rank {rank} has dtype {part.dtype}, not {whole.dtype}"
    for rank in range(mesh.size):
        value = parts[rank]
        if partial:
            value = join(torch.stack([parts[member] for member in mesh.group_ranks(partial, rank)]), 0).to(whole.dtype)
        _assert_close(value, shard(whole, local, mesh, mesh.coordinate(rank)), f"{what}, rank {rank}", tolerance)
    if join is torch.sum:
        _assert_close(unshard(parts, layout, mesh, tuple(whole.shape)), whole, what, tolerance)


def _assert_close(value: torch.Tensor, wanted: torch.Tensor, what: str, tolerance: float) -> None:
    error = (value.double() - wanted.double()).abs()
    assert bool((error <= tolerance * (1 + wanted.double().abs())).all()), (
        f"{what}: differs by {float(error.max()):.3g}"
    )
