"""Global norm of the whole model's gradient, which is sharded over the ranks."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

import torch
import torch.distributed as dist


def global_gradient_norm(gradients: Iterable[torch.Tensor], norm_type: float, device: torch.device) -> torch.Tensor:
    """Norm of the gradient over all ranks, a scalar on ``device``. All ranks have to call it.

    Args:
        gradients: this rank's parts of the gradient; a part that several ranks have is given by one of them.
        norm_type: p of the p-norm, above 0; ``inf`` for the maximum.
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
