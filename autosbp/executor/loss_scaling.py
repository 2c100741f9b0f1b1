"""Loss scaling for float16: gradients are computed of the loss times a factor, so that small ones do not underflow.

The factor is dynamic (Micikevicius et al. 2018, section 3.2): torch's ``ShardedGradScaler`` divides gradients by it,
leaves out the step if one of any rank is not finite, and adapts the factor.
"""

from __future__ import annotations

import torch
from torch.amp import GradScaler
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

from autosbp.graph.ir import LogicalGraph


def loss_scaler(graph: LogicalGraph, device: torch.device) -> GradScaler:
    """The scaler of a graph's loss, which all ranks agree on; it does nothing unless trained parameters are float16."""
    return ShardedGradScaler(device.type, enabled=any(leaf.meta.dtype == "float16" for leaf in graph.trained))


def scaled_loss(loss: torch.Tensor, scale: float) -> torch.Tensor:
    """The loss times a factor."""
    return loss if scale == 1.0 else loss * scale
