"""How much seconds and bytes count in a search problem: all of them on one set of devices, a stage's share in a pipeline."""

from __future__ import annotations

from dataclasses import dataclass

AS_USED, STEP, USE, FASTEST, CHEAPEST = "as_used", "step", "use", "fastest", "cheapest"
"""How parameters are stored: as they are used; split over the ranks that would hold them alike, and gathered once a step
(ZeRO-2) or for each use (ZeRO-3); each in the faster of the first two ways; or, for bounds, with the least seconds and the
least bytes of all."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Factors.

    Args:
        micro: of the seconds of a microbatch; the number of microbatches on one set of devices.
        once: of seconds that pass once a step: gradients, the optimizer, copies of parameters.
        state: of the bytes of parameters, gradients and optimizer state.
        kept: of the bytes that one microbatch keeps for backward.
        handed: of those that recomputed blocks read from elsewhere.
        working: of those that ops of recomputed blocks keep.
    """

    micro: float
    once: float = 1.0
    state: float = 1.0
    kept: float = 1.0
    handed: float = 1.0
    working: float = 1.0
