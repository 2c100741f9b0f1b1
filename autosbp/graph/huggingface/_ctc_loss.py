"""The loss of connectionist temporal classification as a scan over frames, for batches of padded labels.

torch's own op has a size that depends on the labels. This one computes the same (Graves et al. 2006, section 4.1): the log
probability of all paths that end in each position of the labels with blanks between them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._higher_order_ops.scan import scan

from autosbp.errors import UnsupportedError

Tensor = torch.Tensor
NEVER = -1e30
"""Log probability of what cannot happen; finite, so that its gradient is zero."""


def ctc_loss(
    log_probs: Tensor, targets: Tensor, input_lengths: Any, target_lengths: Any, blank: int = 0, reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:  # fmt: skip
    """``torch.nn.functional.ctc_loss`` of log probabilities [frames, batch, classes] and targets [batch, labels].

    Raises:
        UnsupportedError: for targets that are one after another in a single dim, or without a batch.
    """
    if targets.dim() != 2 or log_probs.dim() != 3:
        raise UnsupportedError(
            "ctc_loss of targets in one dim has sizes that depend on their values; give targets as [batch, labels], padded, "
            "with target_lengths, and log_probs as [frames, batch, classes]"
        )
    frames, count = torch.as_tensor(input_lengths), torch.as_tensor(target_lengths)
    inside = torch.arange(targets.shape[1]) < count[:, None]
    labels = torch.where(inside, targets, blank).to(torch.int64)
    blanks = torch.full_like(labels, blank)
    path = torch.nn.functional.pad(torch.stack([blanks, labels], -1).flatten(1), (0, 1), value=blank)
    earlier = torch.nn.functional.pad(path[:, :-2], (2, 0), value=blank)
    skips = (path != blank) & (path != earlier)
    emitted = log_probs.gather(2, path.expand(log_probs.shape[0], -1, -1))
    start = torch.where(torch.arange(path.shape[1]) < 2, emitted[0], NEVER)

    def step(total: Tensor, now: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        probability, runs = now
        one = torch.nn.functional.pad(total[:, :-1], (1, 0), value=NEVER)
        two = torch.where(skips, torch.nn.functional.pad(total[:, :-2], (2, 0), value=NEVER), NEVER)
        total = torch.where(runs, torch.logaddexp(torch.logaddexp(total, one), two) + probability, total)
        return total, total[:, 0].clone()

    runs = (torch.arange(1, log_probs.shape[0])[:, None] < frames)[..., None]
    total, _ = scan(step, start, (emitted[1:], runs))
    ends = torch.stack([2 * count, (2 * count - 1).clamp(min=0)], 1)
    last = total.gather(1, ends)
    losses = -torch.where(count > 0, torch.logaddexp(last[:, 0], last[:, 1]), last[:, 0])
    impossible = losses > -NEVER / 2
    losses = torch.where(impossible, 0.0 if zero_infinity else float("inf"), losses)
    if reduction == "mean":
        return (losses / count.clamp(min=1)).mean()
    return losses.sum() if reduction == "sum" else losses


def transformers_ctc_loss(
    logits: Tensor, labels: Tensor, logit_lengths: Tensor, blank_token_id: int, reduction: str = "mean",
    zero_infinity: bool = False, ignore_index: int = -100, **_: Any,
) -> Tensor:  # fmt: skip
    """``ForCTCLoss`` of transformers, which leaves out ignored labels wherever they are: [batch, frames, classes]."""
    counted = (labels != ignore_index) & (labels != blank_token_id)
    order = torch.argsort((~counted).to(torch.int64), dim=1, stable=True)
    log_probs = torch.nn.functional.log_softmax(logits, dim=-1, dtype=torch.float32).transpose(0, 1)
    return ctc_loss(
        log_probs, labels.gather(1, order), logit_lengths, counted.sum(-1), blank_token_id, reduction, zero_infinity
    )
