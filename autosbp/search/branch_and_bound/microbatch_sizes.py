"""Microbatch sizes that are searched."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from autosbp.cluster.spec import prime_factors
from autosbp.plan.schedules import SCHEDULES


@lru_cache(maxsize=256)
def micro_batches(
    whole: int, stages: int, devices: int, schedules: tuple[str, ...], asked: int | None = None
) -> tuple[int, ...]:
    """Microbatch sizes in samples, largest first, each of which divides the one before: ``asked``, or some divisors.

    There are at least as many microbatches as stages, and, if the batch allows it, a multiple of the stages, which some
    schedules require. Fewer microbatches than stages are tried only if the allowed schedules take no others, or the
    batch is too small: the bubble then exceeds the work, which hardly ever pays.

    Args:
        whole: global batch in samples.
        stages: number of pipeline stages.
        devices: of the cluster.
        schedules: names of the allowed schedules.
        asked: requested size, a divisor of the global batch.
    """
    takes_few = [SCHEDULES[schedule].supports_microbatches(1, stages) for schedule in schedules]
    may_be_few = all(takes_few) or (any(takes_few) and (asked is not None or whole < stages))
    least = 1 if may_be_few else stages
    if asked is not None:
        return (asked,) if whole // asked >= least else ()
    if whole % stages:
        return tuple(size for size in _below(whole, _order(whole, devices)) if whole // size >= least)
    filling = _below(whole // stages, _order(whole // stages, devices))
    return (*(_below(whole, prime_factors(stages))[:-1] if may_be_few else ()), *filling)


def _below(size: int, primes: Iterable[int]) -> list[int]:
    """A size, divided by one prime factor after another."""
    sizes = [size]
    for prime in primes:
        sizes.append(sizes[-1] // prime)
    return sizes


def _order(size: int, devices: int) -> list[int]:
    """Prime factors: first those that do not divide the number of devices; larger ones first."""
    return sorted(prime_factors(size), key=lambda prime: (devices % prime == 0, -prime))
