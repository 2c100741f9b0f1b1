"""What happens in a predicted step (``costmodel.timeline``)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

GRADIENT_SYNC, PARAMETER_GATHER = "gradient_sync", "parameter_gather"
TENSOR_PARALLEL, EXPERT_PARALLEL, PIPELINE, LOSS_SUM = "tensor_parallel", "expert_parallel", "pipeline", "loss"
PURPOSES = (GRADIENT_SYNC, PARAMETER_GATHER, TENSOR_PARALLEL, EXPERT_PARALLEL, PIPELINE, LOSS_SUM)
"""What communication is for: gradients to where parameters are stored; parameters to where they are used; activations and their
gradients between ops, of experts, and of stages; the sum of the loss."""


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that the rank does.

    Args:
        name: of the op, value or parameter.
        category: compute, comm, optimizer, or wait, which takes no time of its own.
        phase: forward, recompute, backward, sync or update.
        duration_s: alone on the machine.
        details: a collective has the ``kind``, ``num_bytes`` and ``axes`` of ``costmodel.collectives.Collective``.
        level: of the cluster that a collective crosses, the slowest.
        key: names a collective that the program does not wait for; None for what it does.
        after: keys of those that have to be over first.
        purpose: of a collective, one of ``PURPOSES``.
    """

    name: str
    category: str
    phase: str
    duration_s: float
    details: Mapping[str, Any] = field(default_factory=dict)
    level: int = 0
    key: Hashable = None
    after: tuple[Hashable, ...] = ()
    purpose: str = TENSOR_PARALLEL
