"""Events of a predicted step (``costmodel.step_events``)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

GRADIENT_SYNC, PARAMETER_GATHER = "gradient_sync", "parameter_gather"
TENSOR_PARALLEL, EXPERT_PARALLEL, PIPELINE, LOSS_SUM = "tensor_parallel", "expert_parallel", "pipeline", "loss"
PURPOSES = (GRADIENT_SYNC, PARAMETER_GATHER, TENSOR_PARALLEL, EXPERT_PARALLEL, PIPELINE, LOSS_SUM)
"""Purposes of communication, in order: gradients to where parameters are stored; parameters to where they are used;
activations and their gradients between ops, for experts, and between stages; the sum of the loss.
"""


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a rank's step.

    Args:
        name: of the op, value or parameter.
        category: compute, comm, optimizer, or wait, which takes no time of its own.
        phase: forward, recompute, backward, sync or update.
        duration_s: time if it ran alone.
        details: a collective has the ``kind``, ``num_bytes`` and ``axes`` of ``costmodel.step_collectives.Collective``.
        level: slowest cluster level that a collective crosses.
        key: identifies an asynchronous collective; None for events on the program's queue.
        after: keys of the collectives that must finish first.
        purpose: purpose of a collective, one of ``PURPOSES``.
        queue: of an asynchronous event; None is that of collectives which cross ``level``.
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
    queue: Hashable = None
