"""When the memory of a stage is looked at, and what a price of memory makes then of what it holds."""

from __future__ import annotations

from dataclasses import dataclass

from autosbp.schedules import Schedule
from autosbp.search.bounds.stage_values import Prices

STEADY = 3
"""So many times the stages, in microbatches: where interleaved schedules have all gradients while as many microbatches
are in flight as there are stages ahead."""


@dataclass(frozen=True)
class Moment:
    """When memory is looked at: whether gradients are there, and of how many microbatches what they keep is; and whether what
    happens once a step counts."""

    gradients: bool
    in_flight: int
    once: bool = True


def moments(schedule: Schedule, stages: int, stage: int, num_micro: int, *, once: bool = True) -> list[Moment]:
    """Of a stage: when all warm up, and when the first gradients are there. With more microbatches no less is held."""
    ahead = min(stages - stage, num_micro)
    steady = not schedule.interleaves or num_micro >= STEADY * stages
    if steady and ahead < num_micro:
        return [Moment(True, _few(ahead), once)]
    # In the end gradients are there and nothing else.
    left = min(ahead, num_micro - 1) if steady else 0
    return [Moment(False, _few(ahead), once), Moment(True, _few(left), once)]


def prices_of(price: float, moment: Moment, share: float) -> Prices:
    """Where bytes have a price, and a ``share`` of the microbatches that costs are of is kept."""
    return Prices(price, price * moment.gradients, price * moment.in_flight * share, moment.once)


def _few(number: int) -> int:
    """Up to 4, or the power of two below: so few numbers are looked at."""
    return number if number <= 4 else 1 << (number.bit_length() - 1)
