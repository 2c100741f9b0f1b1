"""Instants of a step at which a stage's memory is bounded, and the Lagrange multipliers of memory at each."""

from __future__ import annotations

from dataclasses import dataclass

from autosbp.plan.schedules import Schedule
from autosbp.search.bounds.stage_subproblem_values import MemoryMultipliers

STEADY_MICROBATCHES_PER_STAGE = 3
"""Microbatches per stage, above which interleaved schedules have a simple steady state.

From this number on, all gradients are allocated while as many microbatches are in flight as there are stages from this
one to the last."""


@dataclass(frozen=True)
class MemoryInstant:
    """An instant at which memory is bounded.

    ``gradients``: whether the gradients are allocated. ``in_flight``: number of microbatches whose saved activations
    are held. ``once``: whether what happens once a step counts towards the stage's time."""

    gradients: bool
    in_flight: int
    once: bool = True


def memory_instants(
    schedule: Schedule, stages: int, stage: int, num_micro: int, *, once: bool = True
) -> list[MemoryInstant]:
    """Instants of a stage: the end of warm-up, and the first time that all gradients are allocated.

    A schedule holds at least as much with more microbatches."""
    ahead = min(stages - stage, num_micro)
    steady = not schedule.interleaves or num_micro >= STEADY_MICROBATCHES_PER_STAGE * stages
    if steady and ahead < num_micro:
        return [MemoryInstant(True, _round_down_to_power_of_two(ahead), once)]
    # At the end of a step, only gradients are held.
    left = min(ahead, num_micro - 1) if steady else 0
    return [
        MemoryInstant(False, _round_down_to_power_of_two(ahead), once),
        MemoryInstant(True, _round_down_to_power_of_two(left), once),
    ]


def multipliers_at(price: float, moment: MemoryInstant, share: float) -> MemoryMultipliers:
    """Lagrange multipliers of memory at an instant, from ``price`` seconds a byte.

    Args:
        share: part of the microbatches, whose costs are penalised, that is held.
    """
    return MemoryMultipliers(price, price * moment.gradients, price * moment.in_flight * share, moment.once)


def _round_down_to_power_of_two(number: int) -> int:
    """Numbers above 4 are rounded down to a power of two, so that few distinct ones are evaluated."""
    return number if number <= 4 else 1 << (number.bit_length() - 1)
