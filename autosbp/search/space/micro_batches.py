"""Which microbatches are searched."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from autosbp.cluster import prime_factors
from autosbp.schedules import SCHEDULES


@lru_cache(maxsize=256)
def micro_batches(
    whole: int, stages: int, devices: int, schedules: tuple[str, ...], asked: int | None = None
) -> tuple[int, ...]:
    """Sizes to try, in samples, largest first, each of which divides the one before: the one asked for, or some divisors.

    There are enough microbatches to fill the stages, and where the batch allows it a multiple of these, which some schedules
    ask for. Fewer than stages are tried where the schedules asked for take no others, or the batch has no more: that is more
    waiting than work, and hardly ever worth it.

    Args:
        whole: the global batch.
        schedules: names of those that a pipeline may run.
        asked: a size that the batch is a multiple of.
    """
    takes_few = [SCHEDULES[schedule].takes_micro(1, stages) for schedule in schedules]
    may_be_few = all(takes_few) or (any(takes_few) and (asked is not None or whole < stages))
    least = 1 if may_be_few else stages
    if asked is not None:
        return (asked,) if whole // asked >= least else ()
    if whole % stages:
        return tuple(size for size in _below(whole, _order(whole, devices)) if whole // size >= least)
    filling = _below(whole // stages, _order(whole // stages, devices))
    return (*(_below(whole, prime_factors(stages))[:-1] if may_be_few else ()), *filling)


def _below(size: int, primes: Iterable[int]) -> list[int]:
    """From a size on, less one prime factor at a time."""
    sizes = [size]
    for prime in primes:
        sizes.append(sizes[-1] // prime)
    return sizes


def _order(size: int, devices: int) -> list[int]:
    """First the prime factors that no split over devices can use, then the greatest."""
    return sorted(prime_factors(size), key=lambda prime: (devices % prime == 0, -prime))
