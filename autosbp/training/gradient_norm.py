"""Global gradient norm: that of the whole model's gradient, of which every rank holds a part."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

import torch
import torch.distributed as dist


def global_gradient_norm(gradients: Iterable[torch.Tensor], norm_type: float, device: torch.device) -> torch.Tensor:
    """The norm over all ranks, a scalar on ``device``; a collective of all ranks.

    Args:
        gradients: this rank's parts; of parts that several ranks hold, one rank gives it.
        norm_type: p of the p-norm, above 0, ``inf`` for the maximum.
    """
    norms = [torch.linalg.vector_norm(each, norm_type).to(device, torch.float64) for each in gradients]
    if norm_type == inf:
        total = torch.stack(norms).max() if norms else torch.zeros((), dtype=torch.float64, device=device)
        dist.all_reduce(total, dist.ReduceOp.MAX)
        return total
    powers = [norm**norm_type for norm in norms]
    total = torch.stack(powers).sum() if powers else torch.zeros((), dtype=torch.float64, device=device)
    dist.all_reduce(total)
    return total ** (1.0 / norm_type)
