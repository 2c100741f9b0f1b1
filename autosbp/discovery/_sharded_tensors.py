"""Sharded tensors: every rank's part of a whole in a layout, and the whole from its parts.

Ranks are in mesh order, outermost axis first; axes that split the same dim nest in that order, as on real ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from autosbp.sbp.layout import NdSbp, Sbp

_JOINS: Mapping[str, Callable[..., torch.Tensor]] = {"sum": torch.sum, "max": torch.amax, "min": torch.amin}


def shard_tensor(
    whole: torch.Tensor, layout: NdSbp, sizes: tuple[int, ...], generator: torch.Generator
) -> list[torch.Tensor]:
    """Every rank's part of ``whole`` on axes of ``sizes``; partial values are random and add up to it."""
    pieces = [whole]
    for sbp, size in zip(layout, sizes, strict=True):
        pieces = [part for piece in pieces for part in _split(piece, sbp, size, generator)]
    return pieces


def _split(piece: torch.Tensor, sbp: Sbp, size: int, generator: torch.Generator) -> list[torch.Tensor]:
    if sbp.is_split:
        return [part.contiguous() for part in piece.chunk(size, sbp.dim)]
    if not sbp.is_partial:
        return [piece] * size
    terms = [_noise(piece, generator) for _ in range(size - 1)]
    return [piece - sum(terms), *terms]


def _noise(like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    if like.is_floating_point():
        return torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like.dtype)
    return torch.randint(-5, 6, like.shape, generator=generator).to(like.dtype)


def unshard_tensor(
    parts: list[torch.Tensor], layout: NdSbp, sizes: tuple[int, ...], tolerance: float
) -> torch.Tensor | None:
    """The whole from its ``parts`` in ``layout``; None if shapes do not fit or replicas differ."""
    pieces = parts
    for sbp, size in reversed(tuple(zip(layout, sizes, strict=True))):
        found = [_join(pieces[at : at + size], sbp, tolerance) for at in range(0, len(pieces), size)]
        pieces = [piece for piece in found if piece is not None]
        if len(pieces) != len(found):
            return None
    return pieces[0]


def _join(group: list[torch.Tensor], sbp: Sbp, tolerance: float) -> torch.Tensor | None:
    first = group[0]
    if any(part.shape != first.shape for part in group):
        return None
    if sbp.is_split:
        return torch.cat(group, sbp.dim) if sbp.dim < first.dim() else None
    if sbp.is_partial:
        return _JOINS[sbp.reduction](torch.stack(group), 0).to(first.dtype)
    return first if all(is_close(part, first, tolerance) for part in group[1:]) else None


def is_close(found: torch.Tensor | None, wanted: torch.Tensor, tolerance: float) -> bool:
    """Equal shapes and dtypes, and values within ``tolerance`` relative to 1 + the largest magnitude."""
    if found is None or found.shape != wanted.shape or found.dtype != wanted.dtype:
        return False
    if not wanted.is_floating_point():
        return torch.equal(found, wanted)
    if wanted.numel() == 0:
        return True
    error = (found.double() - wanted.double()).abs().max()
    return bool(error <= tolerance * (1.0 + wanted.double().abs().max()))
