"""What happens in a predicted step (``costmodel.timeline``)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any


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
        share_s: of a message that parameters share, what they would pay if it were full; None where nothing is shared.
    """

    name: str
    category: str
    phase: str
    duration_s: float
    details: Mapping[str, Any] = field(default_factory=dict)
    level: int = 0
    key: Hashable = None
    after: tuple[Hashable, ...] = ()
    share_s: float | None = None

    @property
    def summed_s(self) -> float:
        """What counts in a sum over parameters, as search needs it."""
        return self.duration_s if self.share_s is None else self.share_s
