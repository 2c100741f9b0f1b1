"""Ops that index a dim (rows, experts) of which a rank holds a range.

Reads outside the range give zero, so the output is P; additions outside are left to the ranks that hold them.
"""

from __future__ import annotations

from typing import Any

import torch

from autosbp.executor.split_ops._base import SplitCall
from autosbp.graph import experts_op


def embedding_range(weight: torch.Tensor, ids: torch.Tensor, start: int, padding: int = -1) -> torch.Tensor:
    """Rows of a table of which this rank holds ``start`` onwards; rows of other ranks are zero (output P).

    Row ``padding`` of this range, if not -1, has no gradient.
    """
    local = ids - start
    outside = (local < 0) | (local >= weight.shape[0])
    rows = torch.nn.functional.embedding(local.masked_fill(outside, 0), weight, None if padding < 0 else padding)
    return rows.masked_fill(outside.unsqueeze(-1), 0)


def gather_range(x: torch.Tensor, dim: int, index: torch.Tensor, start: int) -> torch.Tensor:
    """``gather`` along a dim of which this rank holds ``start`` onwards; values of other ranks are zero (output P)."""
    local = index - start
    outside = (local < 0) | (local >= x.shape[dim])
    return torch.gather(x, dim, local.masked_fill(outside, 0)).masked_fill(outside, 0)


def scatter_add_range(x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, start: int) -> torch.Tensor:
    """``scatter_add`` along a dim of which this rank holds ``start`` onwards."""
    local = index - start
    outside = (local < 0) | (local >= x.shape[dim])
    inside = source[tuple(slice(size) for size in index.shape)].masked_fill(outside, 0)
    return x.scatter_add(dim, local.masked_fill(outside, 0), inside)


def embedding(call: SplitCall) -> tuple[Any, tuple[Any, ...]]:
    weight, ids = call.args[:2]
    start, padding = call.start(0, 0), call.argument(2, -1)
    rows = call.local_input(0)[0]
    return embedding_range, (weight, ids, start, padding - start if start <= padding < start + rows else -1)


def gather(call: SplitCall) -> tuple[Any, tuple[Any, ...]]:
    dim = call.node.args[1] % len(call.node.outputs[0].shape)
    return gather_range, (call.args[0], dim, call.args[2], call.start(0, dim))


def scatter_add(call: SplitCall) -> tuple[Any, tuple[Any, ...]]:
    dim = call.node.args[1] % len(call.node.outputs[0].shape)
    return scatter_add_range, (call.args[0], dim, *call.args[2:4], call.start(0, dim))


def experts(call: SplitCall) -> tuple[Any, tuple[Any, ...]]:
    """A mixture of experts of which this rank holds a range."""
    return experts_op.experts, (*call.args[:7], call.start(3, 0))
